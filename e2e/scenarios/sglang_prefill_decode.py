"""SGLang's prefill and decode apart: caches of requests go from one half to the other, and each half is killed while a
write waits. The server around them needs kernels that PyPI does not carry for processors; these parts need none."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import environment
from conversation import Conversation
from recorded import recording, unknown_transfers
from rig import E2E, until

from pool import free_port

PATHS = {"same host": {}, "tcp": {"MC_SHM": "0"}}
PAGES = 9


def run(rig):
    environment.add_sglang(rig.python)
    for path, variables in PATHS.items():
        folder = rig.new_folder()
        with ThreadPoolExecutor(1) as caller:
            yield from checks(rig, folder, path, variables, caller)


def checks(rig, folder, path, variables, caller):
    with Prefill(rig, folder, "prefill", variables) as prefill:
        with half(rig, folder, "decode", prefill.port, variables) as decode:
            for room, (first, count) in enumerate([(0, PAGES), (3, 1), (20, 12)]):
                sent, *came = hand_over(prefill, decode, caller, room, first, count)
                right = [sent, *came] == ["Success", "Success", True, *["right"] * count]
                yield f"{path}: {count} pages and their metadata arrive, each right", right
            yield f"{path}: that was the path ({prefill.paths()})", prefill.paths() == {path}
            unknown = unknown_transfers(folder, "sglang_prefill_decode")
            yield f"{path}: every call is among the recorded ones {unknown}", not unknown
            with prefill.write_held(caller, decode, 100):
                decode.program.kill()
            outcome = prefill.half.outcome(100)
            yield f"{path}: decode killed while a write waits: the sender says so ({outcome})", outcome == "Failed"
        with half(rig, folder, "decode-again", prefill.port, variables) as decode:
            sent, *came = hand_over(prefill, decode, caller, 101, 0, PAGES)
            right = [sent, *came] == ["Success", "Success", True, *["right"] * PAGES]
            yield f"{path}: another decode half is served", right
            with prefill.write_held(caller, decode, 102) as receiving:
                prefill.half.program.kill()
            outcome = receiving.result()[0]
            yield f"{path}: prefill killed while a write waits: the receiver says so ({outcome})", outcome == "Failed"


def half(rig, folder, name, port, variables):
    script = E2E / "clients" / "sglang_prefill_decode.py"
    own = {**recording(folder, name), **variables}
    role = name.split("-")[0]
    return Conversation(rig.python, script, [role, str(port)], folder, name, own)


def hand_over(prefill, decode, caller, room, first, count):
    """The cache of a request: what came of it at the sender, and at the receiver."""
    receiving = caller.submit(decode.receive, room, first, count)
    prefill.half.send(room, first, count)
    return [prefill.half.outcome(room), *receiving.result()]


class Prefill:
    """The half that computes, and whose writes can be held back."""

    def __init__(self, rig, folder, name, variables):
        self.port, self.hold = free_port(), folder / f"{name}.hold"
        self.half = half(rig, folder, name, self.port, {**variables, "MOONCAKE_E2E_HOLD": str(self.hold)})

    def __enter__(self):
        self.half.__enter__()
        return self

    def __exit__(self, *reason):
        self.half.__exit__(*reason)

    def paths(self):
        lines = self.half.program.log.read_text(errors="replace").splitlines()
        return {line.split('path="')[1].split('"')[0] for line in lines if " link peer=" in line}

    @contextlib.contextmanager
    def write_held(self, caller, decode, room):
        """A request whose first write waits for the end of the block; yields what the receiver will answer."""
        self.hold.touch()
        try:
            receiving = caller.submit(decode.receive, room, 0, PAGES)
            self.half.send(room, 0, PAGES)
            until("a write waits", self.hold.with_name(f"{self.hold.name}.held").exists)
            yield receiving
        finally:
            self.hold.unlink()
