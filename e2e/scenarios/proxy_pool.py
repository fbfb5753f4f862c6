"""The proxy before vLLM servers that share a pool: same answers as of one server, under changes and kills."""

from proxied import proxied
from rig import MOONCAKE

ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def run(rig):
    with rig.pool() as pool:

        def make(kind, name, number):
            own = {"kv_connector_extra_config": {"lookup_rpc_port": str(number)}}
            return rig.vllm(pool, name, {**MOONCAKE, "kv_role": ROLES[kind], **own})

        yield from proxied(make, pool.folder, rig, pool)
