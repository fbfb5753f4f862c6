"""The pool's own processes: the master and the storage nodes.

Each is started on free ports of the loopback address with its output in a log
file, is found ready by asking it, and ends with the process that started it.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

HOST = "127.0.0.1"


class PoolError(Exception):
    """A process of the pool did not do what was asked of it."""


def free_ports(count):
    """`count` different ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _end_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """One child process with a log file."""

    def __init__(self, name, command, log, environment=None, **pipes):
        self.name = name
        self.log = Path(log)
        with self.log.open("ab") as output:
            pipes.setdefault("stdin", subprocess.DEVNULL)
            pipes.setdefault("stdout", output)
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stderr=output,
                env={**os.environ, **(environment or {})},
                preexec_fn=_end_with_parent,
                **pipes,
            )

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def kill(self):
        """SIGKILL, and waits until the process is gone."""
        if self.running():
            self.process.kill()
        self.process.wait()

    def stop(self, patience=5.0):
        """SIGTERM, then SIGKILL."""
        if self.running():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        self.kill()

    def last_lines(self, count=8):
        """The end of its log, for messages about its failure."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-count:])


class Pool:
    """A master and its storage nodes, with everything they keep in one folder."""

    def __init__(self, programs, folder, master_flags=("--wal_dir={folder}/state",), environment=None):
        self.programs = Path(programs)
        self.folder = Path(folder)
        self.environment = environment or {}
        self.master_flags = [flag.format(folder=self.folder) for flag in master_flags]
        self.rpc_port, self.metrics_port = free_ports(2)
        self.master = None
        self.nodes = {}
        self.node_ports = {}

    @property
    def address(self):
        return f"{HOST}:{self.rpc_port}"

    def node_address(self, name):
        """Where the storage node serves the processes of its host."""
        return f"{HOST}:{self.node_ports[name]}"

    @property
    def metrics_url(self):
        return f"http://{HOST}:{self.metrics_port}/metrics"

    def start_master(self, patience=10.0):
        """Starts the master, or starts it again on the same ports and state."""
        self.master = Program(
            "master",
            [
                self.programs / "mooncake_master",
                f"--rpc_address={HOST}",
                f"--rpc_port={self.rpc_port}",
                f"--metrics_host={HOST}",
                f"--metrics_port={self.metrics_port}",
                *self.master_flags,
            ],
            self.folder / "master.log",
            self.environment,
        )
        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                socket.create_connection((HOST, self.rpc_port), timeout=0.2).close()
                return
            except OSError:
                pass
            if not self.master.running():
                raise PoolError(f"the master ended with {self.master.process.returncode}:\n{self.master.last_lines()}")
            time.sleep(0.01)
        raise PoolError(f"the master does not accept connections after {patience} s:\n{self.master.last_lines()}")

    def start_node(self, name, segment_bytes):
        """Starts a storage node, or starts it again on its port; `wait_for_segments` says when it is mounted."""
        port = self.node_ports.setdefault(name, free_ports(1)[0])
        self.nodes[name] = Program(
            name,
            [
                self.programs / "mooncake_client",
                f"--host={HOST}",
                f"--port={port}",
                "--metadata_server=P2PHANDSHAKE",
                f"--master_server_address={self.address}",
                "--protocol=tcp",
                f"--global_segment_size={segment_bytes}",
            ],
            self.folder / f"{name}.log",
            self.environment,
        )

    def ask(self, path, patience=2.0):
        """Body of one page of the master's HTTP port; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}{path}", timeout=patience) as reply:
                return reply.read().decode(errors="surrogateescape")
        except (urllib.error.URLError, OSError):
            return None

    def keys(self):
        """The keys that the master lists, or None while it does not answer."""
        body = self.ask("/get_all_keys")
        return None if body is None else set(body.split("\n")) - {""}

    def segments(self):
        """The segments that the master lists, or None while it does not answer."""
        body = self.ask("/get_all_segments")
        return None if body is None else [line for line in body.split("\n") if line]

    def metric(self, name):
        """A number of /metrics; 0 when there is no answer or no such metric."""
        for line in (self.ask("/metrics") or "").splitlines():
            if line.split(" ")[0] == name:
                return int(float(line.split(" ")[1]))
        return 0

    def wait_for_segments(self, count, patience=15.0):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            listed = self.segments()
            if listed is not None and len(listed) == count:
                return
            for node in self.nodes.values():
                if not node.running():
                    raise PoolError(f"{node.name} ended with {node.process.returncode}:\n{node.last_lines()}")
            time.sleep(0.05)
        logs = "\n".join(f"{one.name}:\n{one.last_lines()}" for one in [self.master, *self.nodes.values()])
        raise PoolError(f"the master lists {listed} after {patience} s, {count} segments were expected\n{logs}")

    def wait_populated(self, patience=20.0):
        """Waits until all lent memory is there, so that no measured put waits for the kernel to make it.

        A master that does not tell how far its segments are is not waited for.
        """
        end = time.monotonic() + patience
        while time.monotonic() < end:
            listed = json.loads(self.ask("/get_segments_detail") or "{}").get("segments", [])
            if listed and all(one.get("populated_bytes", one["size_bytes"]) >= one["size_bytes"] for one in listed):
                return
            time.sleep(0.05)
        raise PoolError(f"the nodes' memory is not populated after {patience} s")

    def stop(self):
        for node in self.nodes.values():
            node.stop()
        if self.master is not None:
            self.master.stop()
        remove_witnesses(self.folder)


def remove_witnesses(folder):
    """Removes how far the logs below a folder had come: the one thing of a master that lies elsewhere."""
    for file in Path(folder).rglob("log-*.wal"):
        log_id = int.from_bytes(file.read_bytes()[16:24], "little")
        Path(f"/dev/shm/mooncake-log-{log_id:016x}").unlink(missing_ok=True)
