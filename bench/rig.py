"""One implementation set up for measurement: a master, an owner of memory, and clients.

The owner donates memory and does nothing else, so that every value that a
client moves crosses from one process to another.
"""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from pool import Installation, Master, Node, PoolError, Program, remove_witnesses

ROOT = Path(__file__).resolve().parent.parent


class RigError(PoolError):
    """A measured process failed; the cell has no figure."""


@dataclass
class Implementation:
    """What is measured: an interpreter that can import it, and its programs."""

    name: str
    python: str
    environment: dict = field(default_factory=dict)
    # Kept off shared memory by its environment: it has cells of its own.
    by_tcp: bool = False
    engine_worker: str = "engine_worker.py"

    @property
    def programs(self):
        return Path(self.python).parent

    @property
    def installation(self):
        return Installation(self.programs)


def memory_kib(pid, *fields):
    """The named fields of /proc/PID/status, KiB, added up."""
    total = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in fields:
            total += int(value.split()[0])
    return total


class Client:
    """A worker process."""

    def __init__(self, implementation, folder, name, script="worker.py"):
        self.program = Program(
            name,
            [implementation.python, ROOT / "bench" / script],
            folder / f"{implementation.name}-{name}.log",
            env=implementation.environment,
            ends_with_parent=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ).start()

    @property
    def pid(self):
        return self.program.pid

    def send(self, do, **arguments):
        self.program.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.program.process.stdin.flush()

    def receive(self):
        line = self.program.process.stdout.readline()
        if not line:
            raise RigError(f"{self.program.name} ended:\n{self.program.last_lines()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RigError(f"{self.program.name}: {answer['error']}\n{self.program.last_lines()}")
        return answer

    def ask(self, do, **arguments):
        self.send(do, **arguments)
        return self.receive()

    def stop(self):
        self.program.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.program.process.wait(15)
        self.program.kill()


class Rig:
    """A running master with one owner; clients are added as cells ask for them."""

    def __init__(self, implementation, segment_bytes=0, buffer_bytes=512 << 20, tier=None, prefetch=False):
        """With `tier`, a folder, the owner keeps a tier there; what is looked for stays there unless `prefetch`."""
        self.implementation = implementation
        self.tier = tier
        self.prefetch = prefetch
        self.folder = Path(tempfile.mkdtemp(prefix="mooncake-bench-"))
        self.buffer_bytes = buffer_bytes
        self.clients = []
        self.nodes = []
        self.owner = None
        try:
            self.start_s = self._start_master()
            if segment_bytes:
                self.owner = self.client("owner", segment_bytes, 64 << 20, tier=bool(tier))
                self._settle()
        except BaseException:
            self.stop()
            raise

    def _start_master(self):
        one = self.implementation
        flags = ["--enable_offload=true"] if self.tier else []
        if self.tier and one.installation.is_ours and not self.prefetch:
            flags.append("--tier_prefetch=false")
        self.master = Master(self.folder, flags, one.environment, one.installation, ends_with_parent=True)
        # Of each implementation alike, since their lines differ.
        self.master.ready = self.master.port
        return self._run_master()

    def start_master_again(self):
        """One that has ended, with its log and at its address."""
        return self._run_master()

    def _run_master(self):
        begin = time.perf_counter()
        self.master.start(step=0.001)
        return time.perf_counter() - begin

    def _settle(self, timeout=20.0):
        """Waits until the owner's memory grows no more: cells measure the pool, not the kernel that makes its pages."""
        end = time.monotonic() + timeout
        before = -1
        while time.monotonic() < end:
            now = memory_kib(self.owner.pid, "VmRSS")
            if now == before:
                return
            before = now
            time.sleep(0.4)

    def client(self, name, segment_bytes=0, buffer_bytes=None, tier=False, environment=None):
        """A further client, set up; with `tier` it keeps the rig's."""
        one = self.bare_client(name, environment)
        how = {"tier": str(self.tier)} if tier else {}
        buffer = buffer_bytes or self.buffer_bytes
        one.setup_s = one.ask("setup", master=self.master.addr, segment=segment_bytes, buffer=buffer, **how)["seconds"]
        return one

    def bare_client(self, name, environment=None):
        """A further client process that is not set up yet, with these variables beside the implementation's."""
        implementation = replace(self.implementation, environment=self.implementation.environment | (environment or {}))
        one = Client(implementation, self.folder, name)
        self.clients.append(one)
        return one

    def node(self, segment_bytes):
        """A storage node of this host; the port at which `setup_dummy` finds it."""
        one, name = self.implementation, f"node-{len(self.nodes)}"
        node = Node(name, self.folder, self.master.addr, segment_bytes, [], one.environment, one.installation, True)
        self.nodes.append(node.launch())
        return node.port

    def until(self, works, timeout=15.0):
        """Tries what needs another process to be ready until it works."""
        end = time.monotonic() + timeout
        while True:
            try:
                return works()
            except RigError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def together(self, clients, **how):
        """One timed cell on several clients at once, added up."""
        start_at = time.monotonic() + 0.3
        for client in clients:
            client.send("run", start_at=start_at, **how)
        results = [client.receive() for client in clients]
        seconds = (max(r["ended"] for r in results) - min(r["started"] for r in results)) / 1e9
        total = {key: sum(r[key] for r in results) for key in ("count", "moved", "failed", "wrong")}
        return {**total, "seconds": seconds, "p50_us": sorted(r["p50_us"] for r in results)[len(results) // 2]}

    def stop(self):
        for client in reversed(self.clients):
            client.stop()
        for node in self.nodes:
            node.terminate(5)
        self.master.terminate(5)
        # What a failure needs of the logs is in its message.
        remove_witnesses(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
