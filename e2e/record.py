"""Records the calls that engines make, for the replays in tests/python.

    python e2e/record.py [--only NAME ...] [--wheel dist/mooncake_rs-*.whl] [--folder target/e2e] [--to FOLDER]

Each file is one conversation, a line a call, after a first line that says which engine: with the pool (see
clients/recorder.py for how), or of a prefill and a decode server's transfer engines (see recorded_transfers.py).
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import environment
import recorded_transfers
from prefill_decode import DecodeServer, PrefillServer, hand_over
from recorded import TESTS, recording
from rig import Rig
from run import newest_wheel
from scenarios import lmcache_direct, sglang_direct, sglang_linker, sglang_prefill_decode, vllm_offline
from server import prompt

ROOT = Path(__file__).resolve().parent.parent
# 6 blocks of 32 tokens and a rest.
PROMPT_TOKENS = 200
# For a little less, an object that was looked up is not removed without force.
LOOKED_UP_S = 3


def vllm(*options):
    def converse(rig, pool):
        for process, more in (("first", []), ("second", ["--reset"])):
            variables = recording(pool.folder, process)
            vllm_offline.generate(rig, pool, process, PROMPT_TOKENS, variables, [*options, *more])

    return converse


def lmcache(stored):
    def converse(rig, pool):
        with lmcache_direct.client(rig, pool, stored, "writer") as writer:
            writer.exists(0)
            writer.get(0, 1)
            writer.put(0, 3)
            writer.put_one(3)
            writer.contains(0, 5)
            with lmcache_direct.client(rig, pool, stored, "reader") as reader:
                reader.contains(0, 5)
                reader.get(0, 5)
                reader.lookup(1_000, 2)
                reader.close()

    return converse


def sglang(mode):
    def converse(rig, pool):
        environment.add_sglang(rig.python)
        with sglang_direct.client(rig, pool, mode, "writer") as writer:
            writer.exists(0, 2)
            writer.set(0, 2)
            writer.set(0, 3)
            with sglang_direct.client(rig, pool, mode, "reader") as reader:
                reader.exists(0, 4)
                reader.get(0, 4)
                time.sleep(LOOKED_UP_S)
                reader.clear()

    return converse


def linker(rig, pool):
    environment.add_sglang(rig.python)
    with sglang_linker.client(rig, pool, "writer") as writer:
        writer.lookup(0, 2)
        writer.offload(0, 3)
        with sglang_linker.client(rig, pool, "reader") as reader:
            reader.lookup(0, 4)
            reader.load(0, 3, 0)
            reader.load(2, 2, 0)


ENGINES = {
    "vllm": (vllm(), "vLLM 0.32.0, MooncakeStoreConnector"),
    "vllm_groups": (vllm("--groups"), "vLLM 0.32.0, MooncakeStoreConnector, enable_group_semantics"),
    "lmcache_metadata": (lmcache("true"), "LMCache 0.5.6, mooncakestore://, save_chunk_meta true"),
    "lmcache_zero_copy": (lmcache("false"), "LMCache 0.5.6, mooncakestore://, save_chunk_meta false"),
    "sglang_mha": (sglang("mha"), "SGLang 0.5.23, HiCache mooncake, keys and values"),
    "sglang_mla": (sglang("mla"), "SGLang 0.5.23, HiCache mooncake, latent attention layer by layer"),
    "sglang_groups": (sglang("groups"), "SGLang 0.5.23, HiCache mooncake, enable_group_semantics"),
    "sglang_linker": (linker, "SGLang 0.5.23, direct linker of mooncake, layer by layer"),
    "sglang_standalone": (sglang("standalone"), "SGLang 0.5.23, HiCache mooncake, standalone_storage"),
}


TRANSFERS = {
    "sglang_prefill_decode": "SGLang 0.5.23, prefill and decode apart: engine 0 decodes, engine 1 prefills",
    "vllm_prefill_decode": "vLLM 0.32.0, MooncakeConnector: engine 0 decodes, engine 1 prefills",
}


def merged(files):
    """The calls of several processes, one after the other, with stores and memory counted through."""
    lines, stores, counts = [], 0, {"buffer": 0, "memory": 0}

    def addresses(value):
        """Every address in arguments: they are written as [kind, number, offset]."""
        if isinstance(value, list) and len(value) == 3 and value[0] in list(counts):
            yield value
        elif isinstance(value, list):
            for one in value:
                yield from addresses(one)

    for file in files:
        calls = [json.loads(line) for line in file.read_text().splitlines()]
        base, stores_before = dict(counts), stores
        for call in calls:
            call["store"] += stores_before
            stores = max(stores, call["store"] + 1)
            for address in addresses(call["args"]):
                address[1] += base[address[0]]
                counts[address[0]] = max(counts[address[0]], address[1] + 1)
        lines += calls
    return lines


def record(rig, name, folder):
    converse, title = ENGINES[name]
    with rig.pool() as pool:
        converse(rig, pool)
        files = sorted(pool.folder.glob("*.calls"), key=lambda file: file.stat().st_mtime)
    write(folder / "engine_calls" / f"{name}.jsonl", title, merged(files))


def record_transfers(rig, name, folder):
    own = rig.new_folder()
    {"sglang_prefill_decode": sglang_halves, "vllm_prefill_decode": vllm_halves}[name](rig, own)
    calls = recorded_transfers.conversation(sorted(own.glob("*.calls")))
    write(folder / "transfer_calls" / f"{name}.jsonl", TRANSFERS[name], calls)


def sglang_halves(rig, own):
    environment.add_sglang(rig.python)
    with (
        ThreadPoolExecutor(1) as caller,
        sglang_prefill_decode.Prefill(rig, own, "prefill", {}) as prefill,
        sglang_prefill_decode.half(rig, own, "decode", prefill.port, {}) as decode,
    ):
        for room, (first, count) in enumerate([(3, 4), (20, 1)]):
            sglang_prefill_decode.hand_over(prefill, decode, caller, room, first, count)


def vllm_halves(rig, own):
    prefill = PrefillServer(rig, own, "prefill", recording(own, "prefill"))
    decode = DecodeServer(rig, own, "decode", recording(own, "decode"))
    with prefill, decode:
        for tokens in (7, PROMPT_TOKENS):
            hand_over(prefill, decode, prompt(tokens, tokens))


def write(file, title, calls):
    file.parent.mkdir(exist_ok=True)
    lines = [{"engine": title}, *calls]
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    print(f"{file}: {len(lines) - 1} calls, {file.stat().st_size} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*ENGINES, *TRANSFERS]
    parser.add_argument("--only", metavar="NAME", choices=names, nargs="+", default=names)
    parser.add_argument("--wheel", help="our wheel; the newest of dist/ when left out")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "e2e")
    parser.add_argument("--to", type=Path, default=TESTS)
    options = parser.parse_args()
    rig = Rig(environment.prepare(options.folder / "venv", options.wheel or newest_wheel()), options.folder)
    for name in options.only:
        (record if name in ENGINES else record_transfers)(rig, name, options.to)


if __name__ == "__main__":
    main()
