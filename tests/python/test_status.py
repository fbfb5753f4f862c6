"""`/status` and what is made of it: the master's page in a browser, and probes."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pool import wait_for

MIB = 1 << 20


def status_of(cluster) -> dict:
    return json.loads(cluster.master.http("/status"))


def code_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_tells_memory_hits_traffic_and_clients(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    for nth in range(4):
        assert store.put(f"k{nth}", b"v" * MIB) == 0
    assert store.get("k0") == b"v" * MIB
    assert store.get("none") == b""
    assert store.put("large", b"v" * 65 * MIB) == -200

    told = status_of(c)
    assert (told["state"], told["cluster_id"], told["rpc_address"]) == ("serving", "mooncake_cluster", c.master.addr)
    assert told["http_address"] == c.master.url.removeprefix("http://")
    assert (told["memory"]["capacity_bytes"], told["memory"]["used_bytes"]) == (64 * MIB, 4 * MIB)
    assert told["memory"]["objects"] == 4
    totals, rates = told["totals"], told["rates"]
    assert (totals["gets"], totals["get_hits"], totals["got_bytes"]) == (2, 1, MIB)
    assert (totals["puts"], totals["put_bytes"], totals["put_failures"]) == (4, 4 * MIB, 1)
    assert rates["gets"] > 0
    assert rates["puts"] > rates["gets"]
    assert told["latency_us"]["get"]["p50"] <= told["latency_us"]["get"]["p99"]
    assert (told["put_failures"]["too_large"], told["put_failures"]["no_room"]) == (1, 0)
    assert {problem["code"] for problem in told["problems"]} == {"puts_too_large"}
    assert told["log"]["lsn"] > 0
    (node,) = [client for client in told["clients"] if client["lent_bytes"]]
    assert (node["state"], node["used_bytes"], node["pid"]) == ("ok", 4 * MIB, c.nodes[0].pid)
    assert any("segment mounted" in event["message"] for event in told["events"])


def test_what_was_asked_is_kept_for_a_page_that_is_opened_later(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    assert store.put("k", b"v" * MIB) == 0
    assert store.get("k") == b"v" * MIB
    wait_for("two samples", lambda: any(status_of(c)["history"]["gets"]), 10)
    history = status_of(c)["history"]
    assert len({len(column) for name, column in history.items() if name != "every_seconds"}) == 1
    assert history["used_bytes"][-1] == MIB
    assert any(ratio == 1 for ratio in history["get_hit_ratio"])


def test_objects_are_listed_with_age_place_and_what_keeps_them(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    for nth in range(3):
        assert store.put(f"a/{nth}", b"v" * 100) == 0
    assert store.put(b"b/\x00%41".decode(), b"v") == 0
    page = json.loads(c.master.http("/get_objects?prefix=a/&limit=2"))
    assert len(page["objects"]) == 2
    rest = json.loads(c.master.http(f"/get_objects?prefix=a/&from={page['next']}"))
    assert (len(rest["objects"]), rest["next"]) == (1, None)
    view = store.get_buffer("a/0")
    assert store.is_exist("a/0") == 1
    (told,) = json.loads(c.master.http("/get_objects?key=a/0"))["objects"]
    assert (told["size_bytes"], told["pin"], told["viewed_replicas"]) == (100, "none", 1)
    assert 0 < told["protected_seconds"] <= 2
    assert 0 <= told["age_seconds"] < 60
    assert [replica["state"] for replica in told["replicas"]] == ["live"]
    del view
    (odd,) = json.loads(c.master.http("/get_objects?prefix=b"))["objects"]
    assert odd["key"] == "b/%00%2541"
    assert json.loads(c.master.http(f"/get_objects?key={odd['key']}"))["objects"][0]["key"] == odd["key"]
    assert json.loads(c.master.http("/get_objects?key=none")) == {"objects": [], "next": None}
    for wrong in ("limit=many", "limit=0", "from=here"):
        code, body = code_of(c.master.url + f"/get_objects?{wrong}")
        assert (code, json.loads(body)["error_code"]) == (400, -600)


def test_pages_of_long_keys_are_short_and_go_on(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    keys = [f"{nth:03}" + "\x01" * 60_000 for nth in range(100)]
    assert store.put_batch(keys, [b"v"] * len(keys)) == 0
    seen, place, pages = [], 0, 0
    while place is not None:
        text = c.master.http(f"/get_objects?limit=10000&from={place}")
        assert len(text) < 12 * MIB
        page = json.loads(text)
        seen += [one["key"][:3] for one in page["objects"]]
        place, pages = page["next"], pages + 1
    assert sorted(seen) == [key[:3] for key in keys]
    assert pages > 2


def test_a_batch_that_comes_again_and_is_stored_has_not_failed(cluster):
    c = cluster(nodes=1, node_bytes=16 * MIB)
    store = c.store()
    views = []
    assert store.put_batch([f"a{nth}" for nth in range(12)], [b"v" * MIB] * 12) == 0
    views = [store.get_buffer(f"a{nth}") for nth in range(12)]
    timer = threading.Timer(0.3, views.clear)
    timer.start()
    assert store.put_batch([f"b{nth}" for nth in range(8)], [b"v" * MIB] * 8) == 0, store.last_error()
    timer.join()
    # The master hears of views that end a moment later.
    wait_for("the views to be over", lambda: status_of(c)["memory"]["pinned_bytes"] == 0, 10)
    told = status_of(c)
    assert told["put_failures"]["no_room"] == 0
    assert told["problems"] == []


def test_an_object_that_is_older_than_its_master_has_no_age(cluster):
    c = cluster(nodes=1)
    assert c.store().put("k", b"v") == 0
    c.master.kill()
    c.master.start()
    wait_for("the node to be back", lambda: json.loads(c.master.http("/get_objects"))["objects"], 10)
    assert json.loads(c.master.http("/get_objects"))["objects"][0]["age_seconds"] is None


def test_probes_say_whether_it_lives_and_whether_it_serves(cluster):
    c = cluster(nodes=0)
    assert code_of(c.master.url + "/livez") == (200, "ok\n")
    assert code_of(c.master.url + "/readyz") == (200, "ok\n")


@pytest.mark.alone
def test_its_page_shows_a_node_that_was_killed_within_three_seconds(cluster, browse, tmp_path):
    c = cluster(nodes=2, node_bytes=64 * MIB)
    assert c.store().put("a/<b>", b"v" * MIB) == 0
    page = browse()
    page.show(c.master.url + "/")
    page.until("document.body.innerText.includes('serving')")
    text = page.text()
    for part in ("serving", "128 MB", "Hit ratio", "Traffic", "Latency", "Why puts fail", c.nodes[0].segment):
        assert part in text, f"{part}:\n{text}"
    assert page.run("document.title").startswith("mooncake: serving")
    gone = c.nodes[1].segment
    began = time.monotonic()
    c.nodes[1].kill()
    page.until(f"document.body.innerText.includes('client lost') && document.body.innerText.includes({gone!r})", 3)
    assert time.monotonic() - began < 3
    assert page.console == []
    page.picture(tmp_path / "page.png")


def test_its_page_finds_keys_and_shows_them_as_text(cluster, browse):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    hostile = "a/<img src=x onerror=alert(1)>"
    assert store.put(hostile, b"v" * 100) == 0
    page = browse(390, 844)
    page.show(c.master.url + "/")
    page.until("document.body.innerText.includes('serving')")
    page.run("document.querySelector('#prefix').value = 'a/'; document.querySelector('#search').requestSubmit()")
    page.until(f"document.body.innerText.includes({hostile!r})")
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth"), "a phone scrolls down only"
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.console == []


@pytest.fixture
def many(cluster):
    """The page of a master, beside what `/status` would say of a thousand nodes."""
    c = cluster(nodes=1)
    html = urllib.request.urlopen(urllib.request.Request(c.master.url + "/", headers={"Accept": "text/html"})).read()
    told = status_of(c)
    (node,) = told["clients"]
    names = [f"10.0.{nth // 250}.{nth % 250}:1" for nth in range(1000)]
    told["clients"] = [node | {"client_id": str(nth), "name": name} for nth, name in enumerate(names)]
    body = json.dumps(told).encode()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            is_status = self.path == "/status"
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if is_status else "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body if is_status else html)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.alone
def test_a_thousand_nodes_are_drawn_within_a_tenth_of_a_second(many, browse, found):
    page = browse()
    page.show(many)
    page.until("document.body.innerText.includes('10.0.0.0:1')")
    rendered = []
    for _ in range(3):
        before = page.run("window.mooncake.renders")
        page.until(f"window.mooncake.renders > {before}")
        rendered.append(page.run("window.mooncake.lastRenderMs"))
    found(f"1,000 nodes drawn in {min(rendered):.0f} ms")
    assert min(rendered) < 100
    page.run("[...document.querySelectorAll('#nodes button')].find(it => it.innerText.startsWith('Show all')).click()")
    page.until("document.querySelector('#nodes').textContent.includes('10.0.3.249:1')")
