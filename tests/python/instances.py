"""Mock instances of an inference server, and a proxy before them."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pool import Program, binary

ADMIN_KEY = "open sesame"


class Instance:
    """Answers as an inference server does: with three events if it is asked for a stream."""

    def __init__(self, model: str = "tiny"):
        self.asked: list[dict] = []
        self.stopped = threading.Event()
        asked, stopped = self.asked, self.stopped

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, body: bytes, kind: str = "application/json") -> None:
                if stopped.is_set():
                    # What was kept open goes, too.
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.answer(json.dumps({"object": "list", "data": [{"id": model}]}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                if body.get("stream"):
                    events = "".join(f"data: {word}\n\n" for word in ("one", "two", "[DONE]"))
                    return self.answer(events.encode(), "text/event-stream")
                return self.answer(json.dumps({"choices": [{"text": "one two"}]}).encode())

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_):
                """A connection that the other side closed is no error."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()


class Proxy(Program):
    """`mooncake proxy`, or the module that stands for it."""

    def __init__(self, log, prefill, decode, flags=(), by_module=False, open_files=None, env=None):
        start = [sys.executable, "-m", "mooncake.vllm_v1_proxy_server"] if by_module else [binary(), "proxy"]
        command = [*start, "--model=tiny", "--port=0", "--health_interval=100ms", *flags]
        for flag, instances in (("--prefill", prefill), ("--decode", decode)):
            if instances:
                command += [flag, *[one.address for one in instances]]
        if open_files:
            command = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command]
        super().__init__("proxy", command, log, "listens on http://", {"ADMIN_API_KEY": ADMIN_KEY} | (env or {}))

    @property
    def url(self) -> str:
        return self.output().rsplit("listens on ", 1)[1].split()[0]

    def ask(self, path: str, body: object = None, headers: dict | None = None) -> tuple[int, str]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict:
        return json.loads(self.ask("/status")[1])
