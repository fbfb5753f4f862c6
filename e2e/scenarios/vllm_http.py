"""vLLM's MooncakeStoreConnector through HTTP: a restarted server gets its prompt from the pool; a reset empties it."""

from rig import wait_for_keys
from server import prompt

PROMPT_TOKENS = 1_500
BLOCK_TOKENS = 32
BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
# The last token is always computed, and only whole blocks are stored.
EXPECTED_HITS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def run(rig):
    text, other = prompt(1, PROMPT_TOKENS), prompt(2, PROMPT_TOKENS)
    with rig.pool() as pool:
        with rig.vllm(pool, "first") as server:
            computed = server.complete(text)
            yield "the first server finds nothing in the pool", server.hits() == 0
            wait_for_keys(pool, BLOCKS)
        with rig.vllm(pool, "second") as server:
            loaded = server.complete(text)
            hits = server.hits()
            yield f"a restarted server loads {EXPECTED_HITS} tokens (got {hits})", hits == EXPECTED_HITS
            yield "the same tokens from computing and from the pool", loaded == computed
            fresh = server.complete(other)
            yield "a prompt that nobody has seen finds nothing", server.hits() == hits and fresh != computed
            wait_for_keys(pool, 2 * BLOCKS)
            server.reset()
            yield "reset_prefix_cache?reset_external=true empties the pool", not pool.keys()
            again = server.complete(text)
            yield "after it nothing is found", server.hits() == hits
            yield "the same tokens after it", again == computed
            wait_for_keys(pool, BLOCKS)
            yield "and they are stored anew", True
