"""A pool whose clients share a folder on NFS: what test_machine_disks.py runs in the machine. nfs_pool.py FOLDER"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from contents import value, version_of
from power_cut_pool import SLOW

from mooncake.store import MooncakeDistributedStore
from pool import Pool, wait_for

MIB = 1 << 20


def main() -> None:
    os.environ.update(SLOW)
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder))
        pool.begin(2, 32 * MIB, master_flags=[f"--root_fs_dir={sys.argv[1]}", "--cluster_id=nfs"])
        try:
            wait_for("tiers", lambda: pool.metric("mooncake_tiers_live") == 2, 60)
            store = MooncakeDistributedStore()
            code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", pool.master.addr)
            assert code == 0, store.last_error()
            keys = [f"k{number}" for number in range(120)]
            for key in keys:
                assert store.put(key, value(key, MIB)) == 0, store.last_error()
            wait_for("all to be written", lambda: pool.metric("file_cache_nums_") >= len(keys), 60)
            print("read:", [version_of(key, store.get(key)) for key in keys].count(0), flush=True)
            pool.nodes[0].kill()
            # What its memory had alone, or a reader had not found before its end was known, may be missed.
            got = [store.get(key) for key in keys]
            assert all(one == b"" or version_of(key, one) == 0 for key, one in zip(keys, got, strict=True))
            print("behind a killed writer:", sum(one != b"" for one in got), flush=True)
            assert store.remove_all(True) > 0
            assert {store.is_exist(key) for key in keys} == {0}
            print("folders:", len([path for path in Path(sys.argv[1], "nfs").iterdir() if path.is_dir()]), flush=True)
            store.close()
        except BaseException:
            for node in pool.nodes:
                print(node.output()[-3000:], flush=True)
            raise
        finally:
            pool.end()


if __name__ == "__main__":
    main()
