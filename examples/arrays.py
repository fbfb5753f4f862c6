"""numpy arrays: whole ones with type and shape, pages of your own memory, and views without any copy.

This file is not called numpy.py: Python would then import it instead of the package.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

from mooncake.store import MooncakeDistributedStore

WHOLE = "examples/arrays/whole"
PAGES, TOKENS, WIDTH = 8, 16, 256


def check(store: MooncakeDistributedStore, codes: list[int]) -> None:
    """The plain store returns codes, negative ones for failures; checked() of views.py raises exceptions itself."""
    if min(codes) < 0:
        raise RuntimeError(store.last_error())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default=os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051"))
    master: str = parser.parse_args().master

    with MooncakeDistributedStore.connect(master, global_segment_size=64 << 20) as store:
        # 1. put_array stores type and shape with the data, so get_array needs the key alone. The bytes go straight from
        # the array to the pool, and from there to the new array: one copy each way, and no `bytes` in between.
        check(store, [store.put_array(WHOLE, np.arange(12, dtype=np.float16).reshape(3, 4))])
        whole = store.get_array(WHOLE)
        assert whole is not None, store.last_error()  # None is a miss
        print(f"whole: {whole.dtype} {whole.shape}, row 1 is {whole[1].tolist()}")

        # 2. An engine has one large array, the KV cache, and stores its pages. Register such memory once: every call on
        # it then skips the checks of unknown addresses.
        cache = np.random.default_rng(1).random((PAGES, TOKENS, WIDTH), dtype=np.float32)
        check(store, [store.register_buffer(cache.ctypes.data, cache.nbytes)])
        keys = [f"examples/arrays/page-{number}" for number in range(PAGES)]
        places = [page.ctypes.data for page in cache]
        sizes = [page.nbytes for page in cache]
        check(store, store.batch_put_from(keys, places, sizes))  # the cache must not change before it returns

        # Any page goes into any place. These objects are bytes: the caller knows their type and shape.
        before = cache.copy()
        check(store, store.batch_get_into(keys, places[::-1], sizes))
        print(f"pages: {PAGES} read into the cache in reverse order, equal: {np.array_equal(cache, before[::-1])}")
        # Take the memory back before numpy frees it.
        check(store, [store.unregister_buffer(cache.ctypes.data)])

        # 3. A view is the object where it lies, so an array over it costs no copy. It is read-only, and it pins the
        # object until the view and every array over it are gone: see views.py. memoryview() is for type checkers alone:
        # numpy's stubs do not know of other buffers.
        handle = store.get_buffer(keys[3])
        assert handle is not None, store.last_error()
        page = np.frombuffer(memoryview(handle), np.float32).reshape(TOKENS, WIDTH)
        print(f"view: without a copy: {page.ctypes.data == handle.ptr()}, writable: {page.flags.writeable}")
        print(f"view: equal to page 3: {np.array_equal(page, before[3])}")
        del handle, page

        check(store, store.batch_remove([WHOLE, *keys]))


if __name__ == "__main__":
    main()
