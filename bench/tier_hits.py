"""Replays a trace of requests against memory with a disk behind it: what share of the blocks is found, and how many
bytes the disk writes for each one that it takes.

    PYTHONPATH=testing python bench/tier_hits.py [TRACE] [--disk FOLDER]

A trace has a JSON object on each line, with `hash_ids`: the blocks of a prompt, in order. Mooncake publishes some with
its paper at FAST '25; the default is the excerpt of one that `make demo` replays. Memory has room for a twentieth of
the distinct blocks, the disk for half of them. Requests come one behind the other: what is there is read, and the rest
is put. A read-ahead of the next request is no part of it, as its prompt is not known before.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from mooncake.store import MooncakeDistributedStore
from pool import Installation, Pool, wait_for

EXCERPT = Path(__file__).parent.parent / "demo" / "trace" / "conversation_excerpt.jsonl"
# What a record has beside its value: its header, in blocks of 4 KiB.
HEADER = 4 << 10
# How long an existence query protects what it found: a replay takes seconds for an hour of requests, and with the
# default of 2 s would keep a part of the tier for that alone.
PROTECTED_MS = 100
STEP = 16 << 20
# Keys of one call.
BATCH = 128


def value(block, size):
    """Bytes of a block that no other has."""
    return block.to_bytes(16, "little") * (size // 16)


def replay(store, requests, size, told):
    """Of all blocks asked for, how many were there, and how many were there and could not be read."""
    asked = found = late = wrong = 0
    said = time.monotonic()
    for number, blocks in enumerate(requests):
        for start in range(0, len(blocks), BATCH):
            some = blocks[start : start + BATCH]
            there = store.batch_is_exist([str(block) for block in some])
            here = [block for block, is_there in zip(some, there, strict=True) if is_there == 1]
            read = dict(zip(here, store.get_batch([str(block) for block in here]) if here else [], strict=True))
            wrong += sum(bytes(got) not in (b"", value(block, size)) for block, got in read.items())
            good = {block for block, got in read.items() if len(got) == size}
            asked, found, late = asked + len(some), found + len(good), late + len(here) - len(good)
            absent = [block for block in dict.fromkeys(some) if block not in good]
            if absent:
                store.put_batch([str(block) for block in absent], [value(block, size) for block in absent])
        if time.monotonic() - said > 20:
            said = time.monotonic()
            told(f"  {number:,} of {len(requests):,} requests: {100 * found / asked:.1f} %")
    return asked, found, late, wrong


def measure(requests, options, disk):
    distinct = len({block for blocks in requests for block in blocks})
    size = options.block_kib << 10
    memory = -(-int(distinct * 0.05 * size) // STEP) * STEP
    room = int(distinct * 0.5) * (size + HEADER)
    with tempfile.TemporaryDirectory(prefix="mooncake-hits-", dir=options.disk) as folder:
        flags, env = [], {}
        if disk:
            flags = ["--enable_offload"]
            env = {
                "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(Path(folder) / "tier"),
                "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(room),
            }
        pool = Pool(Path(folder))
        try:
            pool.begin(
                node_bytes=memory,
                master_flags=[f"--default_kv_lease_ttl={PROTECTED_MS}"],
                node_flags=flags,
                env=env,
                installation=Installation(None),
            )
            pool.wait_segments(1)
            if disk:
                wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1, 30)
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 256 << 20, "tcp", "", pool.master.addr) == 0
            began = time.monotonic()
            asked, found, late, wrong = replay(store, requests, size, print)
            seconds = time.monotonic() - began
            name = "memory and disk" if disk else "memory alone"
            print(
                f"{name}: {100 * found / asked:.1f} % of {asked:,} blocks found, {late} of them not to be read, "
                f"{wrong} wrong; {seconds:.0f} s"
            )
            if disk:
                # Its owner tells of its disk once a second.
                wait_for("all to be written", lambda: pool.metric("mooncake_tier_ordered_bytes") == 0)
                time.sleep(2)
                written = {
                    why: pool.master.metric("mooncake_tier_write_bytes_total", why=why)
                    for why in ("ordered", "kept", "rest")
                }
                admitted = written["ordered"]
                lost = pool.metric("mooncake_evicted_unwritten_objects_total")
                print(
                    f"  bytes written for each admitted: {sum(written.values()) / admitted:.2f} ("
                    + ", ".join(f"{why} {bytes_ / admitted:.2f}" for why, bytes_ in written.items())
                    + f"); {admitted / room:.1f} fills; {lost} evicted before they were written"
                )
            store.close()
            return wrong
        finally:
            pool.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", default=EXCERPT, type=Path)
    parser.add_argument("--block-kib", type=int, default=64, help="bytes of a block")
    parser.add_argument("--requests", type=int, help="the first ones only")
    parser.add_argument("--disk", help="a folder on the disk to be used; the one of temporary files otherwise")
    options = parser.parse_args()
    lines = options.trace.read_text().splitlines()[: options.requests]
    requests = [json.loads(line)["hash_ids"] for line in lines]
    raise SystemExit(1 if sum(measure(requests, options, disk) for disk in (False, True)) else 0)


if __name__ == "__main__":
    main()
