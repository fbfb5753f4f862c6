"""Why a store may keep no tier in a folder: what test_machine_disks.py runs in the machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mooncake.store import MooncakeDistributedStore
from pool import Pool


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder))
        pool.begin(0)
        try:
            store = MooncakeDistributedStore()
            code = store.setup(
                "127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", pool.master.addr,
                enable_ssd_offload=True, ssd_offload_path=sys.argv[1],
            )  # fmt: skip
            print(f"setup: {code} {store.last_error()}", flush=True)
            store.close()
        finally:
            pool.end()


if __name__ == "__main__":
    main()
