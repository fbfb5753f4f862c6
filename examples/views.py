"""Views: read an object where it lies, without a copy, and give its memory back in time.

This process lends 32 MiB, and its objects take 24 MiB: there is room for one at a time.
"""

from __future__ import annotations

import argparse
import os
import time

from mooncake.errors import NoSpace, checked
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

FIRST, SECOND = "examples/views/first", "examples/views/second"
VALUE = b"mooncake" * (24 << 17)


def put_here(store: MooncakeDistributedStore, key: str) -> str:
    """Puts 24 MiB in the memory of this process: "here", or why that has no room."""
    here = ReplicateConfig()
    here.preferred_segment = store.get_hostname()
    try:
        store.put(key, VALUE, here)
    except NoSpace as full:
        return f"no room: {full.reason}"
    [replica, *_] = store.get_replica_desc(key)
    segment = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
    if segment == store.get_hostname():
        return "here"
    # A preference is no order: where it finds no room, the object goes to another node.
    store.remove(key, force=True)  # by force: a look-up protects an object for 2 s
    return f"no room: it went to {segment}"


def wait_here(store: MooncakeDistributedStore, key: str) -> str:
    """Tries again until the object is here, for 5 s at most."""
    deadline = time.monotonic() + 5
    while (place := put_here(store, key)) != "here" and time.monotonic() < deadline:
        time.sleep(0.01)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default=os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051"))
    master: str = parser.parse_args().master

    # checked() raises an exception where the plain store returns a negative code, or None for a miss.
    with checked(MooncakeDistributedStore.connect(master, global_segment_size=32 << 20)) as store:
        # connect() returns before all lent memory is ready for objects, hence the wait.
        print(f"put: {wait_here(store, FIRST)}")

        # get_buffer verifies the checksum once, and pins the bytes: no client can change them or reuse their place. If
        # it cannot map the memory, as that of another host, the handle holds a private copy instead.
        handle = store.get_buffer(FIRST)
        view = memoryview(handle)
        print(f"a view of {len(view)} bytes, read-only: {view.readonly}")

        # A client may remove the object. The view stays as it is.
        store.remove(FIRST, force=True)
        print(f"removed: {FIRST not in store}, the view says {bytes(view[:8])!r}")

        # Every slice, and every numpy array over it, keeps the whole object pinned. This is the usual leak: a small
        # slice in a cache holds 24 MiB of the pool. Copy what you keep: bytes(view[:8]).
        word = view[:8]
        del handle, view
        print(f"a slice is left, put: {put_here(store, SECOND)}")

        # The memory is free when the last view ends. The master hears of it a moment later.
        word.release()
        print(f"no view is left, put: {wait_here(store, SECOND)}")
        last = store.get_buffer(SECOND)
        store.remove(SECOND, force=True)
    # A view outlives its store, too, even if the store lent the memory. So no pointer ever dangles.
    print(f"the store is closed, the view says {bytes(memoryview(last)[:8])!r}")


if __name__ == "__main__":
    main()
