"""Replicas: an object with two of them outlives the node that holds one.

Two processes lend memory. One object gets one replica and another gets two; then one of the processes is killed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from mooncake.errors import NotFound, checked
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

ONCE, TWICE = "examples/replicas/once", "examples/replicas/twice"


def lend(master: str, parent: Connection) -> None:
    """A storage node: it lends 64 MiB until the parent hangs up. `mooncake_client` does the same as a command."""
    with MooncakeDistributedStore.connect(master, global_segment_size=64 << 20) as store:
        parent.send(store.get_hostname())
        parent.poll(None)


class Node:
    def __init__(self, master: str) -> None:
        # A child of fork cannot use a store, so start a new interpreter.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, its_end = spawn.Pipe()
        self.process = spawn.Process(target=lend, args=(master, its_end), daemon=True)
        self.process.start()
        its_end.close()  # so that recv() raises EOFError if the node ends early
        self.segment: str = self.pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default=os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051"))
    master: str = parser.parse_args().master

    # checked() raises an exception where the plain store returns a negative code.
    with checked(MooncakeDistributedStore.connect(master)) as store:
        first, second = Node(master), Node(master)
        # Replicas of one object lie on different clients. The pool chooses which, unless the config prefers some. Here
        # it does, so that we know which node to kill.
        once = ReplicateConfig()
        once.preferred_segment = first.segment
        twice = ReplicateConfig()
        twice.replica_num = 2
        twice.preferred_segments = [first.segment, second.segment]
        store.put(ONCE, b"one copy", once)
        store.put(TWICE, b"two copies", twice)

        # A pool with fewer clients makes fewer replicas, and put succeeds all the same. Count them if it matters.
        for key in (ONCE, TWICE):
            print(f"{key}: {len(store.get_replica_desc(key))} replica(s)")

        first.process.kill()
        first.process.join()
        print("killed the first node")
        # The master notices within a second. Then the objects of that node are misses.
        deadline = time.monotonic() + 5
        while ONCE in store and time.monotonic() < deadline:
            time.sleep(0.01)
        for key in (ONCE, TWICE):
            try:
                print(f"{key}: {store.get(key)!r}")
            except NotFound:
                print(f"{key}: a miss; compute it again")
        # The pool makes no new replica by itself. Upsert an object that has to outlive the next node, too.
        print(f"{TWICE}: {len(store.get_replica_desc(TWICE))} replica(s)")
        store.remove(TWICE, force=True)  # by force: a look-up protects an object for 2 s
    second.pipe.close()
    second.process.join()


if __name__ == "__main__":
    main()
