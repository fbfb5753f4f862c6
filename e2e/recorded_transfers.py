"""The calls of several transfer engines as one conversation, without this run's addresses and ports.

Of what clients/engine_watch.py wrote in each server comes one list of calls in the order of time:

    {"engine": 0, "call": "batch_transfer_sync_write", "args": ["ENGINE 1", [...], [...], [32768]], "returns": 0}

An address is written as ["buffer", N, OFFSET], in the Nth buffer that its engine registered; a peer's name as
"ENGINE n"; a port as "PORT".
"""

import json


class Engine:
    """What one engine has registered, and where it is met."""

    def __init__(self, calls):
        self.calls = calls
        self.port = next((call["returns"] for call in calls if call["call"] == "get_rpc_port"), None)
        registered = [call["args"] for call in calls if call["call"] == "batch_register_memory"]
        self.buffers = [one for addresses, sizes in registered for one in zip(addresses, sizes, strict=True)]

    def place(self, address):
        for number, (start, size) in enumerate(self.buffers):
            if start <= address < start + size:
                return ["buffer", number, address - start]
        raise ValueError(f"{address:#x} lies in no registered buffer")

    def places(self, addresses):
        return [self.place(address) for address in addresses]


def conversation(files):
    """The calls of all servers, each with a file of its own."""
    engines = [Engine([json.loads(line) for line in file.read_text().splitlines()]) for file in files]
    everything = [(call["at"], number, call) for number, engine in enumerate(engines) for call in engine.calls]
    return [_plain(engines, number, call) for _, number, call in sorted(everything, key=lambda one: one[0])]


def _plain(engines, number, call):
    engine, name, args, returns = engines[number], call["call"], call["args"], call["returns"]
    if name == "get_rpc_port":
        returns = "PORT"
    elif name in ("batch_register_memory", "batch_unregister_memory"):
        args = [engine.places(args[0]), *args[1:]]
    elif name == "batch_transfer_sync_write":
        session, here, there, sizes = args
        peer = next(one for one, engine in enumerate(engines) if session.endswith(f":{engine.port}"))
        args = [f"ENGINE {peer}", engine.places(here), engines[peer].places(there), sizes]
    elif name != "initialize":
        raise ValueError(f"{name}: what its arguments mean is not known here")
    return {"engine": number, "call": name, "args": args, "returns": returns}
