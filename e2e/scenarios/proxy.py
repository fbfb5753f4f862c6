"""The proxy before two prefill and one or two decode servers: through the pool, and from server to server."""

import contextlib

from front import Front, Load
from prefill_decode import DecodeServer, PrefillServer, kill
from rig import MOONCAKE, until, wait_for_keys
from server import prompt

LENGTHS = (40, 333, 700, 1_501)
BLOCK_TOKENS = 32
# Only whole ones are stored.
BLOCKS = sum(tokens // BLOCK_TOKENS for tokens in LENGTHS)


def run(rig):
    texts = [prompt(f"proxy {tokens}", tokens) for tokens in LENGTHS]
    with rig.pool() as pool:
        yield from flow("through the pool", through_the_pool(rig, pool), pool.folder, rig, texts, pool)
    folder = rig.new_folder()
    yield from flow("from server to server", from_server_to_server(rig, folder), folder, rig, texts)


def through_the_pool(rig, pool):
    """Makes a server of a kind."""

    def make(kind, name, number):
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[kind]
        own = {"kv_connector_extra_config": {"lookup_rpc_port": str(number)}}
        return rig.vllm(pool, name, {**MOONCAKE, "kv_role": role, **own})

    return make


def from_server_to_server(rig, folder):
    kinds = {"prefill": PrefillServer, "decode": DecodeServer}
    return lambda kind, name, _: kinds[kind](rig, folder, name)


def flow(how, make, folder, rig, texts, pool=None):
    programs = rig.python.parent
    with contextlib.ExitStack() as stack:
        kinds = [("prefill", 0), ("prefill", 1), ("decode", 0), ("decode", 1)]
        # All of them start at once; what is not entered does not end by itself.
        servers = [make(kind, f"{kind}-{nth}", number) for number, (kind, nth) in enumerate(kinds)]
        for one in servers:
            stack.callback(one.stop)
        for one in servers:
            one.wait()
        first, second, decode, other = servers

        # Asked as any server alone. What it has stored is forgotten.
        expected = {text: first.complete(text, 120) for text in texts}
        if pool is None:
            first.forget()
        else:
            wait_for_keys(pool, BLOCKS)
            first.reset()
        front = stack.enter_context(Front(programs, folder, "proxy", [first, second], [decode]))

        before = decode.hits()
        same = [front.complete(text) for text in texts] == list(expected.values())
        yield f"{how}: the answers are those of a single server", same
        if pool is not None:
            # The prefill servers store in the background.
            wait_for_keys(pool, BLOCKS)
            decode.forget()
        streamed = [front.stream(text) for text in texts]
        same = streamed == [(ids, None) for ids in expected.values()]
        yield f"{how}: and so are the streamed ones", same
        hits = decode.hits() - before
        yield f"{how}: decode had {hits} tokens of prompts from elsewhere", hits >= sum(LENGTHS) - 4 * BLOCK_TOKENS

        with Load(front, expected) as load:
            load.more(4)
            for what, kind, server in (
                ("remove", "prefill", second),
                ("add", "decode", other),
                ("remove", "prefill", first),
                ("add", "prefill", second),
                ("remove", "decode", decode),
                ("add", "prefill", first),
                ("add", "decode", decode),
            ):
                front.change(what, kind, server)
                load.more(4)
        found = f"{load.whole} whole, {len(load.broken)} broken, {len(load.lost)} lost {load.lost[:2]}"
        yield f"{how}: added and removed under load: {found}", not load.broken and not load.lost

        with Load(front, expected, clients=4) as load:
            load.more(4)
            kill(second)
            load.more(4)
            until("the decode server has a request", lambda: front.in_flight(other) > 0)
            begun = front.in_flight(other)
            kill(other)
            load.more(8)
        found = f"{load.whole} whole, {len(load.broken)} of {begun} broken, {len(load.lost)} lost {load.lost[:2]}"
        right = not load.lost and len(load.broken) <= 4 and all(load.broken)
        yield f"{how}: a prefill and a decode server killed under load: {found}", right
        answers = [front.complete(text) for text in texts]
        yield f"{how}: the answers afterwards are the same", answers == list(expected.values())
