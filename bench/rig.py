"""One implementation set up for measurement: a master, an owner of memory, and clients.

The owner donates memory and does nothing else, so that every value that a
client moves crosses from one process to another.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from demo.pool import HOST, Program, free_ports  # noqa: E402


class RigError(Exception):
    """A measured process failed; the cell has no figure."""


@dataclass
class Implementation:
    """What is measured: an interpreter that can import it, and its programs."""

    name: str
    python: str
    environment: dict = field(default_factory=dict)
    master_flags: list = field(default_factory=list)
    # Kept off shared memory by its environment: it has cells of its own.
    by_tcp: bool = False
    engine_worker: str = "engine_worker.py"

    @property
    def programs(self):
        return Path(self.python).parent


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
            implementation.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

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

    def __init__(self, implementation, segment_bytes=0, buffer_bytes=512 << 20):
        self.implementation = implementation
        self.folder = Path(tempfile.mkdtemp(prefix="mooncake-bench-"))
        self.buffer_bytes = buffer_bytes
        self.clients = []
        self.nodes = []
        self.owner = None
        try:
            self.start_s = self._start_master()
            if segment_bytes:
                self.owner = self.client("owner", segment_bytes, 64 << 20)
                self._settle()
        except BaseException:
            self.stop()
            raise

    def _start_master(self):
        port, *_ = free_ports(1)
        self.address = f"{HOST}:{port}"
        return self._run_master(port)

    def start_master_again(self):
        """One that has ended, with its log and at its address."""
        return self._run_master(int(self.address.rpartition(":")[2]))

    def _run_master(self, port):
        metrics, *_ = free_ports(1)
        begin = time.perf_counter()
        self.master = Program(
            "master",
            [
                self.implementation.programs / "mooncake_master",
                f"--rpc_address={HOST}",
                f"--rpc_port={port}",
                f"--metrics_host={HOST}",
                f"--metrics_port={metrics}",
                *[flag.format(folder=self.folder) for flag in self.implementation.master_flags],
            ],
            self.folder / f"{self.implementation.name}-master.log",
            self.implementation.environment,
        )
        while time.perf_counter() - begin < 15:
            try:
                socket.create_connection((HOST, port), timeout=0.5).close()
                return time.perf_counter() - begin
            except OSError:
                if not self.master.running():
                    break
                time.sleep(0.001)
        raise RigError(f"the master did not start:\n{self.master.last_lines()}")

    def _settle(self, patience=20.0):
        """Waits until the owner's memory grows no more: cells measure the pool, not the kernel that makes its pages."""
        end = time.monotonic() + patience
        before = -1
        while time.monotonic() < end:
            now = memory_kib(self.owner.pid, "VmRSS")
            if now == before:
                return
            before = now
            time.sleep(0.4)

    def client(self, name, segment_bytes=0, buffer_bytes=None):
        """A further client, set up."""
        one = self.bare_client(name)
        one.setup_s = one.ask(
            "setup", master=self.address, segment=segment_bytes, buffer=buffer_bytes or self.buffer_bytes
        )["seconds"]
        return one

    def bare_client(self, name):
        """A further client process that is not set up yet."""
        one = Client(self.implementation, self.folder, name)
        self.clients.append(one)
        return one

    def node(self, segment_bytes):
        """A storage node of this host; the port at which `setup_dummy` finds it."""
        port, *_ = free_ports(1)
        self.nodes.append(
            Program(
                "node",
                [
                    self.implementation.programs / "mooncake_client",
                    f"--host={HOST}",
                    f"--port={port}",
                    "--metadata_server=P2PHANDSHAKE",
                    f"--master_server_address={self.address}",
                    f"--global_segment_size={segment_bytes}",
                ],
                self.folder / f"{self.implementation.name}-node.log",
                self.implementation.environment,
            )
        )
        return port

    def until(self, works, patience=15.0):
        """Tries what needs another process to be ready until it works."""
        end = time.monotonic() + patience
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
            node.stop()
        self.master.stop()
        # What a failure needs of the logs is in its message.
        for file in self.folder.glob("state/*/log-*.wal"):
            log_id = int.from_bytes(file.read_bytes()[16:24], "little")
            Path(f"/dev/shm/mooncake-log-{log_id:016x}").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
