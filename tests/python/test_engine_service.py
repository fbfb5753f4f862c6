"""A metadata service that stands still: Ctrl-C ends what waits for it, and leaves the engine as is said."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from engine_process import EngineProcess

pytestmark = pytest.mark.timeout(120)


class Service(ThreadingHTTPServer):
    """Keeps documents, and answers nobody while it is still."""

    daemon_threads = True

    def __init__(self):
        self.documents: dict[str, bytes] = {}
        self.moves = threading.Event()
        self.moves.set()
        super().__init__(("127.0.0.1", 0), Documents)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/metadata"


class Documents(BaseHTTPRequestHandler):
    server: Service

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.moves.wait()
        documents, status, answer = self.server.documents, 200, b""
        if self.command == "PUT":
            documents[self.path] = body
        elif self.path not in documents:
            status = 404
        elif self.command == "GET":
            answer = documents[self.path]
        else:
            del documents[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_DELETE = handle_one

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    made = Service()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.moves.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def engine():
    made = EngineProcess()
    yield made
    made.kill()


def interrupted(engine: EngineProcess, call: str, **names) -> float:
    """Seconds that a call goes on after Ctrl-C."""
    source = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    result = ["returned", {call}, engine.last_error()]
except KeyboardInterrupt:
    result = ["interrupted", time.monotonic() - began - 0.3]
"""
    word, took, *why = engine.run(source, **names)
    assert word == "interrupted", (took, why)
    return took


def test_ctrl_c_ends_each_call_that_waits_for_it(service, engine):
    engine.begin(service.url, "node-a")
    lent, more = engine.buffer(4096), engine.buffer(4096, register=False)
    managed = engine.call("allocate_managed_buffer", 4096)
    service.moves.clear()
    calls = [
        "engine.register_memory(more, 4096)",
        "engine.batch_register_memory([more], [4096])",
        "engine.allocate_managed_buffer(4096)",
        "engine.unregister_memory(lent)",
        "engine.free_managed_buffer(managed, 4096)",
        "other.initialize('node-b', url, 'tcp', '')",
        "engine.close()",
    ]
    engine.run("other = module.TransferEngine()")
    for call in calls:
        took = interrupted(engine, call, lent=lent, more=more, managed=managed, url=service.url)
        assert took < 0.5, call
    service.moves.set()
    assert engine.call("close") == 0
    assert engine.call("initialize", "node-a", service.url, "tcp", "") == 0
    assert engine.call("register_memory", more, 4096) == 0


def test_after_ctrl_c_nothing_is_lent_that_was_to_be_lent_or_given_up(service, engine):
    engine.begin(service.url, "node-a")
    lent, more = engine.buffer(4096), engine.buffer(4096, register=False)
    service.moves.clear()
    interrupted(engine, "engine.register_memory(more, 4096)", more=more)
    interrupted(engine, "engine.unregister_memory(lent)", lent=lent)
    service.moves.set()
    for addr in (lent, more):
        assert engine.call("unregister_memory", addr) == -3
        assert engine.call("register_memory", addr, 4096) == 0
