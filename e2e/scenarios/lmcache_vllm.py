"""vLLM with LMCacheConnectorV1 over `mooncakestore://`: a restarted server gets its prompt from the pool."""

from asking import killed_meanwhile
from rig import wait_for_keys, without_master, without_node
from server import prompt

# A load that fails is computed instead: vLLM's default is to fail the request.
TRANSFER = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
CHUNK_TOKENS = 256
PROMPT_TOKENS = 2_100
# LMCache stores whole chunks only.
CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
EXPECTED_HITS = CHUNKS * CHUNK_TOKENS


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
            for what, good in restarted(rig, pool, stored):
                yield f"{mode}: {what}", good


def restarted(rig, pool, stored):
    file = pool.folder / "lmcache.yaml"
    file.write_text(configuration(pool.master.addr, stored))
    environment = {"LMCACHE_CONFIG_FILE": str(file)}
    text = prompt(21, PROMPT_TOKENS)
    with rig.vllm(pool, "first", TRANSFER, environment) as server:
        computed = server.complete(text)
        yield "the first server finds nothing", server.hits() == 0
        wait_for_keys(pool, CHUNKS)
    with rig.vllm(pool, "second", TRANSFER, environment) as server:
        loaded = server.complete(text)
        hits = server.hits()
        yield f"a restarted server loads {EXPECTED_HITS} tokens (got {hits})", hits == EXPECTED_HITS
        yield "the same tokens from computing and from the pool", loaded == computed
        yield from faults(pool, server, text, computed)


def faults(pool, server, text, computed):
    """The master and the storage node are killed and started again."""

    def same():
        # vLLM's own cache would answer otherwise.
        server.forget()
        return server.complete(text) == computed

    with without_master(pool):
        yield "the master is dead: the same tokens", same()
    before = server.hits()
    yield "it is back: the same tokens", same()
    yield f"from the pool (got {server.hits() - before})", server.hits() - before == EXPECTED_HITS
    with without_node(pool):
        yield "the storage node is dead: the same tokens", same()
    yield "a new one is there: the same tokens", same()
    wait_for_keys(pool, CHUNKS)
    before = server.hits()
    yield "stored anew, the same tokens", same()
    yield f"from the pool (got {server.hits() - before})", server.hits() - before == EXPECTED_HITS
    yield from killed_meanwhile(pool, server, {text: computed}, rounds=1)
