"""One vLLM engine in this process, with its KV cache connected to the pool.

    MOONCAKE_CONFIG_PATH=pool.json vllm_engine.py MODEL PROMPT_TOKENS SEED ANSWER [--reset] [--groups]

Generates greedily from a prompt made from SEED and writes to the file ANSWER,
as JSON, the tokens and how many prompt tokens came from a cache.
"""

import argparse
import json
import time
from pathlib import Path

import recorder
from server import prompt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--reset", action="store_true", help="empty the pool at the end")
    parser.add_argument("--groups", action="store_true", help="the objects of a block are a group")
    options = parser.parse_args()
    recorder.install()
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=options.model,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=8192,
        max_num_seqs=4,
        disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="MooncakeStoreConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"enable_group_semantics": options.groups},
        ),
    )
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    begin = time.monotonic()
    result = engine.generate([prompt(options.seed, options.tokens)], sampling, use_tqdm=False)[0]
    seconds = time.monotonic() - begin
    time.sleep(1)  # The connector saves in a thread of its own.
    options.answer.write_text(
        json.dumps(
            {
                "tokens": list(result.outputs[0].token_ids),
                "cached": result.num_cached_tokens,
                "seconds": round(seconds, 3),
            }
        )
    )
    if options.reset:
        engine.reset_prefix_cache(reset_connector=True)
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
