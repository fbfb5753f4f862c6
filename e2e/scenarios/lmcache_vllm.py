"""vLLM with LMCacheConnectorV1 over `mooncakestore://`: a restarted server gets its prompt from the pool."""

from rig import wait_for_keys
from server import prompt

TRANSFER = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
CHUNK_TOKENS = 256
PROMPT_TOKENS = 2_100
# LMCache stores whole chunks only.
EXPECTED_HITS = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS


def configuration(master, stored_metadata):
    """LMCache's file as its documents write it: `master_server_address`, `device_name`."""
    return f"""\
chunk_size: {CHUNK_TOKENS}
remote_url: "mooncakestore://{master}/"
remote_serde: "naive"
local_cpu: False
max_local_cpu_size: 1
extra_config:
  local_hostname: "127.0.0.1"
  metadata_server: "P2PHANDSHAKE"
  protocol: "tcp"
  device_name: ""
  master_server_address: "{master}"
  global_segment_size: 0
  local_buffer_size: 134217728
  transfer_timeout: 10
  save_chunk_meta: {stored_metadata}
"""


def run(rig):
    for mode, stored in (("metadata stored", True), ("zero copy", False)):
        with rig.pool() as pool:
            file = pool.folder / "lmcache.yaml"
            file.write_text(configuration(pool.address, stored))
            environment = {"LMCACHE_CONFIG_FILE": str(file)}
            text = prompt(21, PROMPT_TOKENS)
            with rig.vllm(pool, "first", TRANSFER, environment) as server:
                computed = server.complete(text)
                yield f"{mode}: the first server finds nothing", server.hits() == 0
                wait_for_keys(pool, EXPECTED_HITS // CHUNK_TOKENS)
            with rig.vllm(pool, "second", TRANSFER, environment) as server:
                loaded = server.complete(text)
                hits = server.hits()
            yield f"{mode}: a restarted server loads {EXPECTED_HITS} tokens (got {hits})", hits == EXPECTED_HITS
            yield f"{mode}: the same tokens from computing and from the pool", loaded == computed
