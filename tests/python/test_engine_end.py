"""The end of an engine and of its memory, as Python sees it: nothing is freed that somebody is still at."""

from __future__ import annotations

import pytest
from engine_process import EngineProcess

pytestmark = pytest.mark.timeout(60)
SIZE = 32 << 20


@pytest.fixture(params=[{}, {"MC_SHM": "0"}], ids=["same host", "tcp"])
def pair(request):
    made = [EngineProcess(env=request.param), EngineProcess(env=request.param)]
    one, two = made
    one.begin()
    yield one, two, two.begin()
    two.thaw()
    for engine in made:
        engine.kill()


@pytest.fixture
def alone():
    engine = EngineProcess()
    yield engine
    engine.kill()


def before_a_frozen_one(pair):
    """An engine that has met the other, which stands still from now on: its name, and memory here and there."""
    one, two, name = pair
    there = two.buffer(SIZE)
    here = one.call("allocate_managed_buffer", SIZE)
    assert one.call("transfer_sync_write", name, here, there, 4096) == 0
    two.freeze()
    return one, name, here, there


def test_close_waits_for_a_call_before_it_frees_what_the_call_uses(pair):
    one, name, here, there = before_a_frozen_one(pair)
    source = """
begun, codes = threading.Event(), []
def call():
    begun.set()
    codes.append(engine.transfer_sync_write(name, here, there, size))
    codes.append("closed" in engine.last_error() or "not initialized" in engine.last_error())
caller = threading.Thread(target=call)
caller.start()
begun.wait()
time.sleep(0.2)
began = time.monotonic()
codes.append(engine.close())
took = time.monotonic() - began
mapped = any(line.startswith(f"{here:x}-") for line in open("/proc/self/maps"))
caller.join(20)
result = [sorted(codes, key=repr), caller.is_alive(), mapped, took]
"""
    codes, alive, mapped, took = one.run(source, name=name, here=here, there=there, size=SIZE)
    assert codes == [-1, 0, True]
    assert not alive
    assert not mapped
    assert took < 8, took


def test_close_in_a_signal_handler_frees_nothing_that_the_interrupted_call_uses(pair):
    one, name, here, there = before_a_frozen_one(pair)
    source = """
import signal
codes = []
def handler(*_):
    codes.append(engine.close())
    codes.append("still under way" in engine.last_error())
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
codes.append(engine.transfer_sync_write(name, here, there, size))
codes.append(any(line.startswith(f"{here:x}-") for line in open("/proc/self/maps")))
codes.append(engine.close())
codes.append(any(line.startswith(f"{here:x}-") for line in open("/proc/self/maps")))
codes.append(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
result = codes
"""
    codes = one.run(source, name=name, here=here, there=there, size=SIZE)
    assert codes == [-4, True, -1, True, 0, False, 0]


def test_memory_is_allocated_without_keeping_other_threads_of_python_waiting(alone):
    # The metadata service is one of these threads: it could not answer.
    source = """
import http.server, urllib.parse
entries = {}
class Service(http.server.BaseHTTPRequestHandler):
    def key(self):
        return urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["key"][0]
    def answer(self, code, body=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        body = entries.get(self.key())
        self.answer(404 if body is None else 200, body or b"")
    def do_PUT(self):
        entries[self.key()] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)
    def do_DELETE(self):
        self.answer(200 if entries.pop(self.key(), None) is not None else 404)
    def log_message(self, *_):
        pass
service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=service.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{service.server_port}/metadata"
began = engine.initialize("127.0.0.1", url, "tcp", "")
addr = engine.allocate_managed_buffer(4096)
result = [began, addr != 0, engine.last_error(), engine.free_managed_buffer(addr, 4096), engine.close()]
"""
    assert alone.run(source) == [0, True, "", 0, 0]
