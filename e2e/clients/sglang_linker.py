"""SGLang's direct linker, which loads device pools layer by layer from the store, with the pools in host memory; told
by lines on stdin what to do.

    sglang_linker.py SETTINGS

The linker, its pool entries and its store are SGLang's own. Stand-ins are what a server around them would give: events
of a device's streams, the topology of one process, the pools of a model. A line is a JSON list, a call and its
arguments. Page n always has the same content.

    ["offload", FIRST, COUNT]         true or false
    ["lookup", FIRST, COUNT]          the prefix lengths that can be loaded
    ["load", FIRST, COUNT, MS]        [landed, "right" or "wrong" for each layer], as the layers are consumed; so many
                                      milliseconds between two of them
"""

import json
import sys
import time
import types

import commands

PAGES, PAGE_TOKENS, LAYERS = 32, 16, 4
# Bytes of a token in a layer of the latent cache, and of a page in a layer of the index beside it.
TOKEN_BYTES, INDEX_BYTES = 576, 2_112


class Event:
    """Of a device that is done with everything at once."""

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass


class Client:
    def __init__(self, settings):
        import torch
        from sglang.srt.mem_cache.hicache_storage import PoolName
        from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolEntry, DevicePoolGroup
        from sglang.srt.mem_cache.storage.mooncake_store import mooncake_direct_linker as module
        from sglang.srt.mem_cache.unified_cache import unified_cache_linker as base

        self.torch, self.kv = torch, PoolName.KV
        tokens = PAGES * PAGE_TOKENS
        self.cache = [torch.zeros((tokens, TOKEN_BYTES), dtype=torch.uint8) for _ in range(LAYERS)]
        self.index = [torch.zeros((PAGES, INDEX_BYTES), dtype=torch.uint8) for _ in range(LAYERS)]

        def entry(name, buffers, rows_are_pages):
            return DevicePoolEntry(
                name=name,
                indices_from_pool=PoolName.KV,
                device_pool=None,
                components=[buffers],
                layer_mapping={layer: layer for layer in range(LAYERS)},
                page_size=PAGE_TOKENS,
                rows_are_pages=rows_are_pages,
            )

        entries = [entry(PoolName.KV, self.cache, False), entry(PoolName.INDEXER, self.index, True)]
        group = DevicePoolGroup(entries, LAYERS, PAGE_TOKENS, rank_replicated=True)
        module.resolve_hybrid_device_pool_group = lambda **_: group
        module.get_parallel = lambda: types.SimpleNamespace(tp_size=1)
        module.get_model = lambda: types.SimpleNamespace(model_path="tiny/model")
        module.freeze_gc = lambda _: None
        module.device_module = base.device_module = types.SimpleNamespace(Event=Event)
        params = types.SimpleNamespace(
            page_size=PAGE_TOKENS,
            token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: None),
            attn_tp_cache_group=None,
            tp_cache_group=None,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
        )
        server_args = types.SimpleNamespace(enable_linker_mla_dedup=False)
        self.linker = module.MooncakeDirectLinker(server_args, params, components=set(), extra_config=settings)
        self.pace = 0.0
        self._slow_down()

    def _slow_down(self):
        """Layers are done at the pace that a call asks for."""
        counter = self.linker.layer_done_counter
        complete = counter.complete

        def later(index, layer):
            time.sleep(self.pace)
            complete(index, layer)

        counter.complete = later

    def _transfers(self, first, count):
        from sglang.srt.mem_cache.hicache_storage import PoolTransfer

        indices = self.torch.arange(first * PAGE_TOKENS, (first + count) * PAGE_TOKENS)
        keys = [f"{number:064x}" for number in range(first, first + count)]
        return [PoolTransfer(name=self.kv, device_indices=indices, keys=keys)]

    def _parts(self, first, count, layer):
        """The bytes of pages in a layer, each with what they are to be."""
        for number in range(first, first + count):
            generator = self.torch.Generator().manual_seed(number * LAYERS + layer)
            for part in (
                self.cache[layer][number * PAGE_TOKENS : (number + 1) * PAGE_TOKENS],
                self.index[layer][number],
            ):
                yield part, self.torch.randint(0, 256, part.shape, dtype=self.torch.uint8, generator=generator)

    def offload(self, first, count):
        for layer in range(LAYERS):
            for part, content in self._parts(first, count, layer):
                part.copy_(content)
        if not self.linker.offload(self._transfers(first, count)):
            return False
        self.linker.offload_queue.join()
        return self.linker.pop_completed_offload()

    def lookup(self, first, count):
        return self.linker.lookup("lookup", self._transfers(first, count))

    def load(self, first, count, pace_ms):
        for buffer in (*self.cache, *self.index):
            buffer.zero_()
        self.pace = pace_ms / 1_000
        if not self.linker.load("load", self._transfers(first, count)):
            return [False]
        index = self.linker.start_layer_wise_loading()
        self.linker.layer_done_counter.set_consumer(index)
        found = []
        for layer in range(LAYERS):
            self.linker.layer_done_counter.wait_until(layer)
            same = all(self.torch.equal(part, content) for part, content in self._parts(first, count, layer))
            found.append("right" if same else "wrong")
        return [self.linker.finish_layer_wise_loading(index), *found]


if __name__ == "__main__":
    commands.obey(lambda: Client(json.loads(sys.argv[1])))
