"""A headless browser, asked over its own pipe: pages are loaded, looked at and clicked as people do it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# For an answer: it is the machine that is slow, if anything is.
TIMEOUT_S = 60


def found() -> str | None:
    """The browser of this machine, if it has one."""
    return os.environ.get("MOONCAKE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


@contextlib.contextmanager
def served(page: str, status: dict) -> Iterator[str]:
    """Where a page is that was taken from its program, beside what `/status` would say."""
    answers = {
        "/": ("text/html; charset=utf-8", page.encode()),
        "/status": ("application/json", json.dumps(status).encode()),
    }

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            kind, body = answers[self.path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Page:
    """One page of one browser. What it writes to its console is kept."""

    def __init__(self, binary: str, profile: Path, width: int = 1280, height: int = 900):
        asks, told = os.pipe(), os.pipe()
        # The browser hears commands at descriptor 3, and answers at 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{asks[0]} 4>&{told[1]}', "bash"]
        command = [*shell, binary, *FLAGS, f"--user-data-dir={profile}"]
        self._asks, self._told = asks[1], told[0]
        self._numbers, self._buffer, self._session = itertools.count(1), b"", None
        self._process: subprocess.Popen | None = None
        self.console: list[str] = []
        self._log = (profile.parent / "browser.log").open("wb")
        try:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=(asks[0], told[1]), stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
                )
            finally:
                os.close(asks[0])
                os.close(told[1])
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self._ask(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            # Nobody has it to close it.
            self.close()
            raise

    def resize(self, width: int, height: int = 900) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def dark(self, is_dark: bool = True) -> None:
        value = "dark" if is_dark else "light"
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def show(self, url: str) -> None:
        self._ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self) -> str:
        """What is to be read on it."""
        return self.run("document.body.innerText")

    def until(self, script: str, timeout: float = 20.0) -> float:
        """Seconds until an expression is true."""
        begin = time.monotonic()
        while not self.run(script):
            assert time.monotonic() - begin < timeout, f"{script} is not true after {timeout} s:\n{self.text()[:3000]}"
            time.sleep(0.02)
        return time.monotonic() - begin

    def picture(self, path: Path) -> None:
        """Draws it."""
        import base64

        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._asks)
        os.close(self._told)
        self._log.close()

    def _ask(self, method: str, **parameters: Any) -> dict:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._asks, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next(until, method)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._hear(answer)

    def _next(self, until: float, method: str) -> dict:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._told], [], [], max(0.0, until - time.monotonic()))
            assert readable, f"the browser does not answer {method}"
            part = os.read(self._told, 1 << 20)
            assert part, f"the browser has ended: {Path(self._log.name).read_text()[-2000:]}"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: dict) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(" ".join(str(one.get("value")) for one in parameters["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.console.append(parameters["entry"]["text"])
