"""One vLLM engine in this process, with its KV cache connected to the pool.

    MOONCAKE_CONFIG_PATH=pool.json engine.py MODEL PROMPT_TOKENS SEED ANSWER

Generates greedily from a prompt made from SEED and writes to the file ANSWER,
as JSON, the tokens and how many prompt tokens came from a cache.
"""

import json
import random
import string
import sys
import time
from pathlib import Path


def main():
    model, tokens, seed, answer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=8192,
        max_num_seqs=4,
        disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(kv_connector="MooncakeStoreConnector", kv_role="kv_both"),
    )
    prompt = "".join(random.Random(seed).choices(string.ascii_letters + string.digits + " .,", k=tokens))
    begin = time.monotonic()
    result = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), use_tqdm=False)[0]
    seconds = time.monotonic() - begin
    time.sleep(1)  # The connector saves in a thread of its own.
    answer.write_text(
        json.dumps(
            {
                "tokens": list(result.outputs[0].token_ids),
                "cached": result.num_cached_tokens,
                "seconds": round(seconds, 3),
            }
        )
    )
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
