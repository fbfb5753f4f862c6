"""A storage node with a tier is killed: the next one has its cache, from the disk; vLLM answers the same with it."""

from rig import node_with_its_tier_alone, wait_for_keys
from server import prompt

PROMPT_TOKENS = 1_500
BLOCKS = PROMPT_TOKENS // 32
EXPECTED_HITS = (PROMPT_TOKENS - 1) // 32 * 32
PROMPTS = 3


def run(rig):
    texts = [prompt(300 + number, PROMPT_TOKENS) for number in range(PROMPTS)]
    with rig.pool(tier=True) as pool, rig.vllm(pool, "vllm") as server:
        expected = {text: server.complete(text) for text in texts}
        wait_for_keys(pool, PROMPTS * BLOCKS)
        for round_ in ("killed", "killed again"):
            node_with_its_tier_alone(pool, PROMPTS * BLOCKS)
            yield f"{round_}: all {PROMPTS * BLOCKS} blocks are there", len(pool.keys()) >= PROMPTS * BLOCKS
            server.forget()
            before = server.hits()
            same = all(server.complete(text) == expected[text] for text in texts)
            yield "the same answers", same
            hits = server.hits() - before
            yield (
                f"all {PROMPTS * EXPECTED_HITS} tokens come from the disk (got {hits})",
                (hits == PROMPTS * EXPECTED_HITS),
            )
