"""What scenarios are made of: pools, vLLM servers, folders, and how long to wait for what."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

from server import E2E, Server

from pool import Installation, Pool, wait_for

POOL_BYTES = 1 << 30
CLIENTS = "master_active_clients"
TIER_PATH = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"

# vLLM's own connector. A load that fails is computed instead: vLLM's default is to fail the request.
MOONCAKE = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class Rig:
    """An interpreter with the engines, a model, and a folder for what is started."""

    def __init__(self, python, folder, model="tiny", sizes=()):
        self.python = Path(python)
        self.folder = Path(folder).resolve()
        self.model = self.folder / model
        if not (self.model / "config.json").exists():
            command = [self.python, E2E / "tiny_model.py", self.model, *sizes]
            subprocess.run([str(part) for part in command], check=True, capture_output=True)

    def new_folder(self):
        """Kept, for its logs."""
        return Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))

    @contextlib.contextmanager
    def pool(self, nodes=1, node_bytes=POOL_BYTES, programs=None, env=None, tier=False):
        """A master and storage nodes; with `tier` each of them keeps one, in the pool's folder."""
        pool = Pool(self.new_folder())
        flags = None
        if tier:
            flags, env = ["--enable_offload"], {**(env or {}), TIER_PATH: str(pool.folder / "tiers")}
        programs = Installation(programs or self.python.parent)
        try:
            pool.begin(nodes, node_bytes, node_flags=flags, env=env, installation=programs)
            pool.wait_segments(nodes)
            if tier:
                until("tiers are mounted", lambda: pool.metric("mooncake_tiers_live") == nodes)
            yield pool
        finally:
            pool.end()

    def pool_json(self, pool):
        """The file that vLLM's connector reads."""
        file = pool.folder / "pool.json"
        file.write_text(
            json.dumps(
                {
                    "mode": "standalone-store",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": pool.master.addr,
                    "protocol": "tcp",
                    "device_name": "",
                    "global_segment_size": 0,
                    "local_buffer_size": "256MB",
                }
            )
        )
        return file

    def vllm(self, pool, name, transfer=MOONCAKE, environment=None):
        """A server connected to the pool; a context that is entered when it serves."""
        return self.server(
            pool.folder, name, transfer, environment or {"MOONCAKE_CONFIG_PATH": str(self.pool_json(pool))}
        )

    def server(self, folder, name, transfer, environment=None):
        return Server(self.python, self.model, folder, name, transfer, environment)


def until(what, condition, timeout=30.0):
    """Waits for what an engine does in threads of its own, not asking more often than it can bear."""
    return wait_for(what, condition, timeout, 0.05)


def wait_for_keys(pool, count):
    """Waits until the pool has `count` objects."""
    until(f"{count} objects in the pool", lambda: len(pool.keys() or ()) >= count)


@contextlib.contextmanager
def without_master(pool):
    """The master is dead during the block, and has all its clients again afterwards."""
    clients = pool.metric(CLIENTS)
    pool.master.kill()
    yield
    pool.master.start()
    until("the clients are back", lambda: pool.metric(CLIENTS) >= clients)


def node_with_its_tier_alone(pool, objects):
    """Kills the storage node when its tier has so many objects, and starts the next one, whose memory has none."""
    until(f"{objects} objects on the disk", lambda: pool.metric("file_cache_nums_") >= objects)
    pool.nodes[0].kill()
    until("the dead node's segment is forgotten", lambda: not pool.segments())
    pool.nodes[0].start()
    pool.wait_segments(1)
    until("its tier is mounted", lambda: pool.metric("mooncake_tiers_live") == 1)


@contextlib.contextmanager
def without_node(pool):
    """The storage node is dead during the block; afterwards there is a new one, and the old one is forgotten."""
    pool.nodes[0].kill()
    yield
    until("the dead node's segment is forgotten", lambda: not pool.segments())
    pool.nodes[0].start()
    pool.wait_segments(1)
