"""LMCache's own connector class with tensors in host memory, told by lines on stdin what to do.

    lmcache_connector.py MASTER true|false CONFIG   chunk metadata is stored, or not

CONFIG is laid over LMCache's extra configuration, as JSON.

A line is a JSON list, a call and its arguments; so is the answer. Chunk number n always has the same content.

    ["put", FIRST, COUNT]         [null]
    ["put_one", NUMBER]           [null]
    ["exists", NUMBER]            [true or false, by the coroutine; the same by the synchronous method]
    ["contains", FIRST, COUNT]    [how many of the first are there]
    ["get", FIRST, COUNT]         ["right", "wrong" or "missing" for each]
    ["lookup", FIRST, COUNT]      [tokens that the external look-up client finds of as many chunks]
    ["close"]                     [null]
"""

import asyncio
import json
import os
import sys
import threading

import commands

os.environ["LMCACHE_TRACK_USAGE"] = "false"
os.environ["LMCACHE_LOG_LEVEL"] = "WARNING"

CHUNK_TOKENS = 256
# Layers, keys and values, tokens, heads, size of a head: 1 MiB a chunk.
SHAPE = (8, 2, CHUNK_TOKENS, 4, 32)
LIMIT_S = 60


class Client:
    def __init__(self, master, stored_metadata, config):
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.connector import CreateConnector
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

        self.torch, self.master = torch, master
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK_TOKENS,
            local_cpu=False,
            max_local_cpu_size=0.25,
            remote_url=f"mooncakestore://{master}/",
            remote_serde="naive",
            extra_config={
                "local_hostname": "127.0.0.1",
                "metadata_server": "P2PHANDSHAKE",
                "protocol": "tcp",
                "device_name": "",
                "master_server_address": master,
                "global_segment_size": 0,
                "local_buffer_size": 64 << 20,
                "transfer_timeout": 10,
                "save_chunk_meta": stored_metadata,
                **config,
            },
        )
        self.metadata = LMCacheMetadata(
            model_name="tiny/model",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=SHAPE,
            role="worker",
        )
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.memory = LocalCPUBackend(self.config, self.metadata, dst_device="cpu")
        self.connector = CreateConnector(self.config.remote_url, self.loop, self.memory, self.config, self.metadata)
        self.lookup_client = None

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT_S)

    def _key(self, number):
        from lmcache.utils import CacheEngineKey

        return CacheEngineKey("tiny/model", 1, 0, 0xC0FFEE00 + number, self.torch.bfloat16)

    def _content(self, number):
        generator = self.torch.Generator().manual_seed(number)
        return self.torch.randn(self.metadata.get_shapes()[0], generator=generator).to(self.torch.bfloat16)

    def _chunk(self, number):
        chunk = self.memory.allocate(self.metadata.get_shapes(), self.metadata.get_dtypes())
        chunk.tensor.copy_(self._content(number))
        return chunk

    def put(self, first, count):
        numbers = range(first, first + count)
        self._put([self._key(number) for number in numbers], [self._chunk(number) for number in numbers])

    def _put(self, keys, chunks):
        self._wait(self.connector.batched_put(keys, chunks))
        for chunk in chunks:
            chunk.ref_count_down()

    def put_one(self, number):
        chunk = self._chunk(number)
        self._wait(self.connector.put(self._key(number), chunk))
        chunk.ref_count_down()

    def exists(self, number):
        key = self._key(number)
        return [bool(self._wait(self.connector.exists(key))), bool(self.connector.exists_sync(key))]

    def contains(self, first, count):
        keys = [self._key(number) for number in range(first, first + count)]
        return self._wait(self.connector.batched_async_contains("lookup", keys))

    def get(self, first, count):
        numbers = range(first, first + count)
        chunks = self._wait(self.connector.batched_get([self._key(number) for number in numbers]))
        found = []
        for number, chunk in zip(numbers, chunks, strict=True):
            if chunk is None:
                found.append("missing")
                continue
            found.append("right" if self.torch.equal(chunk.tensor, self._content(number)) else "wrong")
            chunk.ref_count_down()
        return found

    def lookup(self, first, count):
        """Stores chunks under the keys of a text's tokens, and asks the look-up client for one chunk more."""
        from lmcache.v1.lookup_client.mooncake_lookup_client import MooncakeLookupClient

        if self.lookup_client is None:
            self.lookup_client = MooncakeLookupClient(self.config, self.metadata, self.master)
        tokens = list(range(first, first + (count + 1) * CHUNK_TOKENS))
        keys = [key for _, _, key in self.lookup_client.token_database.process_tokens(tokens)][:count]
        self._put(keys, [self._chunk(number) for number in range(count)])
        return self.lookup_client.lookup(tokens)

    def close(self):
        self._wait(self.connector.close())


if __name__ == "__main__":
    commands.obey(lambda: Client(sys.argv[1], *map(json.loads, sys.argv[2:])))
