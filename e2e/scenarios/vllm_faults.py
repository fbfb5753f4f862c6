"""vLLM answers the same while the master and a storage node are killed and started again, between and during requests.

The servers run with `kv_load_failure_policy` "recompute": what cannot be loaded is computed. vLLM's default, "fail",
fails the request instead.
"""

from asking import killed_meanwhile
from rig import wait_for_keys, without_master, without_node
from server import prompt

PROMPT_TOKENS = 1_500
BLOCKS = PROMPT_TOKENS // 32
EXPECTED_HITS = (PROMPT_TOKENS - 1) // 32 * 32
PROMPTS = 6


def run(rig):
    texts = [prompt(100 + number, PROMPT_TOKENS) for number in range(PROMPTS)]
    with rig.pool() as pool:
        with rig.vllm(pool, "first") as server:
            expected = {text: server.complete(text) for text in texts}
            wait_for_keys(pool, PROMPTS * BLOCKS)
        with rig.vllm(pool, "second") as server:
            yield "all is loaded before the faults", all(server.complete(text) == expected[text] for text in texts)
            yield f"{PROMPTS * EXPECTED_HITS} tokens of it", server.hits() == PROMPTS * EXPECTED_HITS

            def ask_all():
                server.forget()
                before = server.hits()
                same = all(server.complete(text) == expected[text] for text in texts)
                return same, server.hits() - before

            with without_master(pool):
                same, _ = ask_all()
                yield "the master is dead: the same answers", same
            same, hits = ask_all()
            yield "it is back: the same answers", same
            whole = hits == PROMPTS * EXPECTED_HITS
            yield f"and all {PROMPTS * EXPECTED_HITS} tokens come from the pool again (got {hits})", whole

            with without_node(pool):
                same, _ = ask_all()
                yield "the storage node is dead: the same answers", same
            same, _ = ask_all()
            yield "a new one is there: the same answers", same
            wait_for_keys(pool, PROMPTS * BLOCKS)
            same, hits = ask_all()
            yield f"and it holds all blocks (got {hits} tokens)", same and hits == PROMPTS * EXPECTED_HITS

            yield from killed_meanwhile(pool, server, expected, rounds=2)
            ask_all()
            wait_for_keys(pool, PROMPTS * BLOCKS)
            same, hits = ask_all()
            yield f"afterwards all is loaded again (got {hits} tokens)", same and hits == PROMPTS * EXPECTED_HITS
