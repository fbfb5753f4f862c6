"""What scenarios are made of: pools, vLLM servers, folders, and how long to wait for what."""

import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path

from demo.pool import Pool, PoolError
from server import E2E, Server

POOL_BYTES = 1 << 30

# vLLM's own connector. A load that fails is computed instead: vLLM's default is to fail the request.
MOONCAKE = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class Rig:
    def __init__(self, python, folder):
        self.python = Path(python)
        self.folder = Path(folder)
        self.model = self._model()

    def _model(self):
        model = self.folder / "tiny"
        if not (model / "config.json").exists():
            subprocess.run([str(self.python), str(E2E / "tiny_model.py"), str(model)], check=True)
        return model

    @contextlib.contextmanager
    def pool(self, nodes=1, node_bytes=POOL_BYTES, programs=None):
        """A master and storage nodes, in a folder of their own, which is kept for its logs."""
        pool = Pool(programs or self.python.parent, Path(tempfile.mkdtemp(prefix="run-", dir=self.folder)))
        try:
            pool.start_master()
            for node in range(nodes):
                pool.start_node(f"node-{node}", node_bytes)
            pool.wait_for_segments(nodes)
            yield pool
        finally:
            pool.stop()

    def pool_json(self, pool):
        """The file that vLLM's connector reads."""
        file = pool.folder / "pool.json"
        file.write_text(
            json.dumps(
                {
                    "mode": "standalone-store",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": pool.address,
                    "protocol": "tcp",
                    "device_name": "",
                    "global_segment_size": 0,
                    "local_buffer_size": "256MB",
                }
            )
        )
        return file

    def vllm(self, pool, name, transfer=MOONCAKE, environment=None, options=()):
        """A server connected to the pool; a context that is entered when it serves."""
        environment = environment or {"MOONCAKE_CONFIG_PATH": str(self.pool_json(pool))}
        return Server(self.python, self.model, pool.folder, name, transfer, environment, options)


def until(what, condition, patience=30.0):
    """Waits until `condition` is true."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise PoolError(f"{what}: not within {patience} s")
        time.sleep(0.05)


def wait_for_keys(pool, count):
    """Engines store in threads of their own: waits until the pool has `count` objects."""
    until(f"{count} objects in the pool", lambda: len(pool.keys() or ()) >= count)
