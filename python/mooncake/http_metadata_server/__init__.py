"""The HTTP metadata server, for whoever starts it from Python."""

from __future__ import annotations

import contextlib
import subprocess

from mooncake.cli import binary, run


class KVBootstrapServer:
    """A metadata server in a process of its own, which ends with this object at the latest."""

    def __init__(self, port: int, host: str = "0.0.0.0"):
        self.port = port
        self.host = host
        self._process: subprocess.Popen | None = None

    def run(self) -> None:
        """Starts it and returns once it accepts connections; with port 0, `port` is the one it took."""
        if self.poll():
            return
        command = [binary(), "metadata-server", f"--host={self.host}", f"--port={self.port}", "--log_level=WARNING"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        if not line:
            reason = process.stderr.read().strip()
            process.wait()
            raise OSError(f"the metadata server did not start on {self.host}:{self.port}: {reason}")
        self.port = int(line.rsplit(" ", 1)[1])
        self._process = process

    def poll(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Ends it. What was published is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()

    def __del__(self) -> None:
        # At the interpreter's exit anything may be gone already.
        with contextlib.suppress(Exception):
            self.close()


def main() -> None:
    """Becomes ``mooncake_http_metadata_server`` with this process's arguments."""
    run("metadata-server")
