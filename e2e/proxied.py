"""The proxy before two prefill and one or two decode servers: the same answers while servers come, go and die."""

import contextlib

from front import TOKENS, Front, Load
from prefill_decode import kill
from rig import until, wait_for_keys
from server import prompt

LENGTHS = (40, 333, 700, 1_501)
BLOCK_TOKENS = 32
# Only whole ones are stored.
BLOCKS = sum(tokens // BLOCK_TOKENS for tokens in LENGTHS)


def proxied(make, folder, rig, pool=None):
    """What is to be so, whichever way the KV cache takes. `make` starts a server: its kind, name and number."""
    programs, texts = rig.python.parent, [prompt(f"proxy {tokens}", tokens) for tokens in LENGTHS]
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
        expected = {text: first.complete(text, TOKENS) for text in texts}
        if pool is None:
            first.forget()
        else:
            wait_for_keys(pool, BLOCKS)
            first.reset()
        front = stack.enter_context(Front(programs, folder, "proxy", [first, second], [decode]))

        before = decode.hits()
        same = [front.complete(text) for text in texts] == list(expected.values())
        yield "the answers are those of a single server", same
        if pool is not None:
            # The prefill servers store in the background.
            wait_for_keys(pool, BLOCKS)
            decode.forget()
        streamed = [front.stream(text) for text in texts]
        same = streamed == [(ids, None) for ids in expected.values()]
        yield "and so are the streamed ones", same
        hits = decode.hits() - before
        yield f"decode had {hits} tokens of prompts from elsewhere", hits >= sum(LENGTHS) - 4 * BLOCK_TOKENS

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
        yield f"added and removed under load: {found}", not load.broken and not load.lost

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
        yield f"a prefill and a decode server killed under load: {found}", right
        answers = [front.complete(text) for text in texts]
        yield "the answers afterwards are the same", answers == list(expected.values())
