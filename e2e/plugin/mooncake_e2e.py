"""What engines lack on a machine without an accelerator.

vLLM loads this in each of its processes, because the folder is on PYTHONPATH and carries an entry point.

LMCache gets a copier between vLLM's CPU cache and its own memory: without it, it says "No supported cpu connector
found" and vLLM goes on without a cache. vLLM's `MooncakeConnector` gets a number for the device that is not there. And
vLLM's processes sleep until a message comes: they would wait awake for a second each, and leave no processor to the
threads of the connector on a machine with few. Between the engines and Mooncake nothing is changed.
"""

import importlib.abc
import importlib.machinery
import sys

from clients import engine_watch

PATCHED = "lmcache.v1.gpu_connector"
WAKE_UP_MS = 20


def register():
    """Called by vLLM, perhaps several times in a process."""
    _number_the_device()
    _wait_asleep()
    engine_watch.install()
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        # LMCache is not imported here: vLLM's start-up trips over some of its modules when they are there too early.
        sys.meta_path.insert(0, _AfterImport())


def _number_the_device():
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.current_device_index = lambda: 0


def _wait_asleep():
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    if hasattr(SpinCondition.wait, "original"):
        return
    original = SpinCondition.wait

    def wait(self, timeout_ms=None):
        self.busy_loop_s = 0
        # Wake-ups can get lost. Whoever waits looks at the shared memory after each return, and waits again.
        original(self, WAKE_UP_MS if timeout_ms is None else min(timeout_ms, WAKE_UP_MS))

    wait.original = original
    SpinCondition.wait = wait


class _AfterImport(importlib.abc.MetaPathFinder):
    """Patches LMCache's module when it is imported."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != PATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None:
            return None
        load = spec.loader.exec_module

        def load_and_patch(module):
            load(module)
            _give_cpu_a_connector(module)

        spec.loader.exec_module = load_and_patch
        return spec


def _give_cpu_a_connector(module):
    import torch
    from lmcache.utils import EngineType
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

    class WholeBlocks(GPUConnectorInterface):
        """Copies whole blocks, whose inner layout is vLLM's own affair.

        A layer's cache is `[blocks, heads, tokens of a block, 2 * head size]`. LMCache's object for T tokens has
        room for exactly T / block of these in every layer, so it serves as a box for their bytes.
        """

        def __init__(self, metadata):
            self.layers, self.halves, _, self.heads, self.head_size = metadata.kv_shape

        def get_shape(self, num_tokens):
            return torch.Size([self.halves, self.layers, num_tokens, self.heads * self.head_size])

        def _places(self, memory_obj, start, end, kvcaches, slot_mapping):
            """The layers' caches, the numbers of the blocks, and the box as `[layer][block]...`."""
            caches = list(kvcaches.values() if isinstance(kvcaches, dict) else kvcaches)
            tokens = caches[0].shape[2]
            slots = slot_mapping[start:end]
            if (end - start) % tokens or int(slots[0]) % tokens:
                raise ValueError(f"tokens {start} to {end} are not whole blocks of {tokens}")
            blocks = (slots[::tokens] // tokens).to(torch.long)
            box = memory_obj.tensor.view(-1).view(len(caches), len(blocks), *caches[0].shape[1:])
            return caches, blocks, box

        def from_gpu(self, memory_obj, start, end, *, kvcaches, slot_mapping, **_):
            caches, blocks, box = self._places(memory_obj, start, end, kvcaches, slot_mapping)
            for layer, cache in enumerate(caches):
                box[layer].copy_(cache[blocks])

        def to_gpu(self, memory_obj, start, end, *, kvcaches, slot_mapping, **_):
            caches, blocks, box = self._places(memory_obj, start, end, kvcaches, slot_mapping)
            for layer, cache in enumerate(caches):
                cache[blocks] = box[layer]

        def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
            for one in zip(memory_objs, starts, ends, strict=True):
                self.from_gpu(*one, **kwargs)

        def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs):
            for one in zip(memory_objs, starts, ends, strict=True):
                self.to_gpu(*one, **kwargs)

    original = module.CreateGPUConnector

    def create(config, metadata, engine, layout_hints=None):
        if engine == EngineType.VLLM:
            return WholeBlocks(metadata)
        return original(config, metadata, engine, layout_hints)

    module.CreateGPUConnector = create
