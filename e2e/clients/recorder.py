"""Writes down every call that an engine makes into the store, for a replay without the engine.

    MOONCAKE_E2E_RECORD=calls.jsonl  in the environment of a client of this folder

One line of JSON a call, in the order of their begins:

    {"store": 0, "call": "batch_put_from", "args": [...], "returns": [0, 0]}

`store` counts the store objects of the process. An address is written as ["buffer", N, OFFSET] when it lies in the
Nth registered buffer, as ["memory", N, 0] otherwise; the master's address as "MASTER", the storage node's as "NODE"; a
value as ["bytes", LENGTH]; a `ReplicateConfig` as {"ReplicateConfig": {attributes}}; an object that lends its bytes as
["view", LENGTH].
"""

import itertools
import json
import os
import threading

# Where in the arguments of a call the addresses are.
ADDRESS_AT = {
    "register_buffer": 0,
    "unregister_buffer": 0,
    "put_from": 1,
    "get_into": 1,
    "batch_put_from": 1,
    "batch_get_into": 1,
    "batch_put_from_multi_buffers": 1,
    "batch_get_into_multi_buffers": 1,
    "batch_get_into_multi_buffer_ranges": 1,
}
# What the clients here set; everything else stays at its default.
CONFIG = ("replica_num", "preferred_segment", "group_ids")


def install():
    """Puts a recording class in the place of the store's, if the environment asks for it."""
    path = os.environ.get("MOONCAKE_E2E_RECORD")
    if not path:
        return
    import mooncake.store

    recorder = Recorder(path)
    mooncake.store.MooncakeDistributedStore = recorder.recording(mooncake.store.MooncakeDistributedStore)


class Recorder:
    def __init__(self, path):
        # One descriptor for the process, each line written at once: engines end without closing anything.
        self.file = open(path, "a", buffering=1)  # noqa: SIM115
        self.lock = threading.Lock()
        self.stores = itertools.count()
        self.buffers, self.memory = [], []

    def recording(self, original):
        recorder = self

        class MooncakeDistributedStore(original):
            def __init__(self):
                super().__init__()
                self._number = next(recorder.stores)

            def __getattribute__(self, name):
                attribute = super().__getattribute__(name)
                if name.startswith("_") or not callable(attribute):
                    return attribute
                return lambda *args, **kwargs: recorder.call(self._number, name, attribute, args, kwargs)

        return MooncakeDistributedStore

    def call(self, store, name, method, args, kwargs):
        with self.lock:
            line = {"store": store, "call": name, "args": self._arguments(name, args)}
            if kwargs:
                line["kwargs"] = {key: self._plain(value) for key, value in kwargs.items()}
        result = method(*args, **kwargs)
        line["returns"] = self._plain(result)
        with self.lock:
            self.file.write(json.dumps(line, separators=(",", ":")) + "\n")
        return result

    def _arguments(self, name, args):
        if name == "setup":
            return [self._setup(args[0])] if isinstance(args[0], dict) else [*args[:6], "MASTER", *args[7:]]
        if name == "setup_dummy":
            return [*args[:2], "NODE"]
        if name == "register_buffer":
            self.buffers.append((args[0], args[1]))
        at = ADDRESS_AT.get(name)
        return [self._address(value) if place == at else self._plain(value) for place, value in enumerate(args)]

    def _setup(self, given):
        return {key: "MASTER" if "master" in key else value for key, value in given.items()}

    def _address(self, value):
        if isinstance(value, (list, tuple)):
            return [self._address(one) for one in value]
        for number, (start, size) in reversed(list(enumerate(self.buffers))):
            if start <= value < start + size:
                return ["buffer", number, value - start]
        if value not in self.memory:
            self.memory.append(value)
        return ["memory", self.memory.index(value), 0]

    def _plain(self, value):
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)):
            return [self._plain(one) for one in value]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return ["bytes", len(value)]
        if type(value).__name__ == "ReplicateConfig":
            fresh = type(value)()
            changed = {name: getattr(value, name) for name in CONFIG if getattr(value, name) != getattr(fresh, name)}
            return {"ReplicateConfig": changed}
        return ["view", len(memoryview(value))]
