"""SGLang's own store of HiCache with pages in host memory, told by lines on stdin what to do.

    sglang_store.py SETTINGS mha|mla

SETTINGS is SGLang's extra configuration of the store, as JSON. `mha`: a key and a value object a page, one piece each;
`mla`: one object a page, a piece for each layer. A line is a JSON list, a call and its arguments. Page n always has
the same content.

    ["set", FIRST, COUNT]         [true or false for each page]
    ["exists", FIRST, COUNT]      [how many of the first are there]
    ["get", FIRST, COUNT]         ["right", "wrong" or "missing" for each]
    ["clear"]                     [null]
"""

import json
import sys
import types

import commands

PAGES, PAGE_TOKENS, LAYERS = 32, 16, 4
# Bytes of a token in one layer: of its keys, and as many of its values.
TOKEN_BYTES = 512


class HostPool:
    """The memory of the host level of HiCache, in as much of its interface as the store uses."""

    page_size = PAGE_TOKENS

    def __init__(self, torch, allocator, mla):
        self.mla, self.allocator = mla, allocator
        halves = 1 if mla else 2
        self.kv_buffer = allocator.allocate((halves, LAYERS, PAGES * PAGE_TOKENS, TOKEN_BYTES), torch.uint8)
        self.kv_buffer.zero_()

    def get_ksize_per_token(self):
        return LAYERS * TOKEN_BYTES

    def get_hybrid_pool_buffer(self):
        return [self.kv_buffer]

    def get_page_buffer_meta(self, indices):
        """Addresses and sizes of the pieces of the pages that begin at every 16th of the indices."""
        start, piece = self.kv_buffer.data_ptr(), PAGE_TOKENS * TOKEN_BYTES
        half = LAYERS * PAGES * piece
        addresses = []
        for token in indices.tolist()[::PAGE_TOKENS]:
            if self.mla:
                addresses += [start + token * TOKEN_BYTES + layer * PAGES * piece for layer in range(LAYERS)]
            else:
                # "page_first": all layers of a page lie together.
                at = start + token * LAYERS * TOKEN_BYTES
                addresses += [at, at + half]
        return addresses, [piece if self.mla else piece * LAYERS] * len(addresses)

    def page(self, number):
        """The bytes of a page, as slices that can be written to."""
        flat = self.kv_buffer.view(-1)
        addresses, sizes = self.get_page_buffer_meta(_indices(number, 1))
        starts = [address - self.kv_buffer.data_ptr() for address in addresses]
        return [flat[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _indices(first, count):
    import torch

    return torch.arange(first * PAGE_TOKENS, (first + count) * PAGE_TOKENS)


class Client:
    def __init__(self, settings, kind):
        import torch
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
        from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store

        self.torch = torch
        allocator = types.SimpleNamespace(allocate=lambda dims, dtype: torch.empty(dims, dtype=dtype))
        if settings.get("standalone_storage"):
            allocator = mooncake_store.MooncakeHostTensorAllocator()
        self.pool = HostPool(torch, allocator, mla=kind == "mla")
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=kind == "mla",
            enable_storage_metrics=False,
            is_page_first_layout=kind != "mla",
            model_name="tiny/model",
            extra_config=settings,
        )
        self.store = mooncake_store.MooncakeStore(config, self.pool)
        self.store.register_mem_pool_host(self.pool)

    def _content(self, number):
        generator = self.torch.Generator().manual_seed(number)
        return [
            self.torch.randint(0, 256, part.shape, dtype=self.torch.uint8, generator=generator)
            for part in self.pool.page(number)
        ]

    def _names(self, first, count):
        return [f"{number:064x}" for number in range(first, first + count)]

    def set(self, first, count):
        for number in range(first, first + count):
            for part, content in zip(self.pool.page(number), self._content(number), strict=True):
                part.copy_(content)
        return self.store.batch_set_v1(self._names(first, count), _indices(first, count))

    def exists(self, first, count):
        return self.store.batch_exists(self._names(first, count))

    def get(self, first, count):
        self.pool.kv_buffer.zero_()
        loaded = self.store.batch_get_v1(self._names(first, count), _indices(first, count))
        found = []
        for number, there in zip(range(first, first + count), loaded, strict=True):
            pairs = zip(self.pool.page(number), self._content(number), strict=True)
            same = all(self.torch.equal(part, content) for part, content in pairs)
            found.append("missing" if not there else "right" if same else "wrong")
        return found

    def clear(self):
        self.store.clear()


if __name__ == "__main__":
    commands.obey(lambda: Client(json.loads(sys.argv[1]), sys.argv[2]))
