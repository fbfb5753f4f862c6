"""The proxy as a program: its flags, its surface, its page in a browser."""

from __future__ import annotations

import json
import socket
import subprocess

import browser
import pytest
from instances import ADMIN_KEY, Instance, Proxy

from pool import binary, wait_for


@pytest.fixture
def instance():
    made = []

    def make(*args):
        made.append(Instance(*args))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def proxy(tmp_path):
    made = []

    def start(*args, **options):
        made.append(Proxy(tmp_path / "proxy.out", *args, **options))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.mark.parametrize("by_module", [False, True])
def test_a_prompt_goes_to_prefill_and_then_to_decode(instance, proxy, by_module):
    prefill, decode = instance(), instance()
    front = proxy([prefill], [decode], by_module=by_module)
    body = {"model": "tiny", "prompt": "once", "max_tokens": 7, "stream": True}
    assert front.ask("/v1/completions", body) == (200, "data: one\n\ndata: two\n\ndata: [DONE]\n\n")
    assert prefill.asked == [{"model": "tiny", "prompt": "once", "max_tokens": 1, "stream": False}]
    assert decode.asked == [body]
    assert front.ask("/v1/models")[1] == '{"object": "list", "data": [{"id": "tiny"}]}'
    assert front.ask("/health")[0] == front.ask("/healthcheck")[0] == 200
    status = front.status()
    assert (status["prefill_nodes"], status["decode_nodes"]) == ([prefill.address], [decode.address])
    assert (status["prefill_node_count"], status["decode_node_count"]) == (1, 1)
    assert 'mooncake_proxy_requests_total{code="2xx"} 1' in front.ask("/metrics")[1]


def test_instances_are_added_and_removed_with_the_key(instance, proxy):
    first, second, other = instance(), instance(), instance("another")
    front = proxy([], [first])

    def change(what, body, key=ADMIN_KEY):
        return front.ask(f"/instances/{what}", body, {"X-API-Key": key})

    add = {"type": "decode", "instance": second.address}
    assert change("add", add, "wrong")[0] == 403
    assert front.ask("/instances/add", add)[0] == 422
    code, said = change("add", {"type": "decode", "instance": other.address})
    assert code == 400
    assert "serves another" in said
    assert change("add", add) == (200, f'{{"message":"Added {second.address} to decode_instances."}}')
    assert front.status()["decode_node_count"] == 2
    assert change("remove", {"type": "decode", "instance": first.address})[0] == 200
    assert front.status()["decode_nodes"] == [second.address]
    for _ in range(3):
        assert front.ask("/v1/completions", {"prompt": "a"})[0] == 200
    assert (len(first.asked), len(second.asked)) == (0, 3)


def test_command_lines_of_other_proxies_work(instance, proxy):
    prefill, decode = instance(), instance()
    (host, port), decode_port = prefill.address.split(":"), decode.address.split(":")[1]
    flags = [
        "--prefiller-host",
        host,
        "--prefiller-port",
        port,
        "--decoder-hosts",
        host,
        "--decoder-ports",
        decode_port,
    ]
    status = proxy([], [], flags=flags, by_module=True).status()
    assert (status["prefill_nodes"], status["decode_nodes"]) == ([prefill.address], [decode.address])
    flags = ["--prefill", f"http://{prefill.address}", "none", "--decode", f"http://{decode.address}"]
    status = proxy([], [], flags=flags).status()
    assert (status["prefill_nodes"], status["decode_nodes"]) == ([prefill.address], [decode.address])


def test_each_request_is_a_line_of_the_log(instance, proxy):
    prefill, decode = instance(), instance()
    front = proxy([prefill], [decode])
    assert front.ask("/v1/completions", {"prompt": "secret"}, {"X-Request-Id": "mine"})[0] == 200
    assert front.ask("/v1/completions", ["no object"])[0] == 400

    def lines():
        return [line for line in front.output().splitlines() if " path=/v1/completions " in line]

    wait_for("both lines", lambda: len(lines()) == 2)
    good, bad = lines()
    for part in ("status=200 end=whole", f"prefill={prefill.address} decode={decode.address}", "id=mine", "bytes="):
        assert part in good
    assert "status=400" in bad
    assert "secret" not in front.output()
    quiet = proxy([], [decode], flags=["--noaccess_log"])
    assert quiet.ask("/v1/completions", {"prompt": "a"})[0] == 200
    assert quiet.terminate() == 0
    assert len(lines()) == 2, "it has the same file"


def test_a_full_table_of_descriptors_takes_no_instance_out_of_service(instance, proxy):
    decode = instance()
    front = proxy([], [decode], open_files=64)
    host, port = front.url.removeprefix("http://").split(":")
    crowd = [socket.create_connection((host, int(port))) for _ in range(100)]
    for _ in range(3):
        assert front.ask("/v1/completions", {"prompt": "a"})[0] == 200
    assert front.status()["instances"][0]["failures"] == 0
    for one in crowd:
        one.close()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--decode", "nowhere"], "nowhere"),
        (["--decode", "https://a:1"], "no TLS"),
        (["--decoder-hosts", "a", "b", "--decoder-port", "1"], "each host needs a port"),
        (["--scheduling=best"], "round_robin, least_loaded, cache_aware"),
        (["--stall_timeout=0"], "stall_timeout"),
        (["--max_body_size=1 XB"], "max_body_size"),
        (["--port=70000"], "port"),
        (["--prefil", "a:1"], "did you mean"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(flags, said):
    done = subprocess.run([binary(), "proxy", *flags], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "mooncake_proxy: " in done.stderr
    assert said in done.stderr


def test_a_proxy_without_instances_that_nobody_can_add_does_not_start(monkeypatch):
    monkeypatch.delenv("ADMIN_API_KEY", raising=False)
    done = subprocess.run([binary(), "proxy", "--port=0"], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "name one with --decode, or set ADMIN_API_KEY" in done.stderr) == (1, True)


def test_a_port_that_is_taken_is_named_with_what_to_do(instance):
    taken = instance().address
    flags = [f"--port={taken.rpartition(':')[2]}", "--decode", taken]
    done = subprocess.run([binary(), "proxy", *flags], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert f"cannot listen on {taken}: " in done.stderr
    assert "--port" in done.stderr


def test_health_tells_how_many_instances_serve_and_a_reason_is_one_fact(proxy, instance):
    one, gone = instance(), instance()
    gone.stop()
    front = proxy([], [one, gone])
    health = json.loads(front.ask("/health")[1])
    assert (health["decode_instances"], health["decode_in_service"]) == (2, 1)
    [reason] = [one["reason"] for one in front.status()["instances"] if one["health"] != "ok"]
    assert reason.count("onnect") == 1, reason


def test_a_body_that_is_no_json_is_told_the_place(proxy, instance):
    front = proxy([], [instance()])
    for body, said in [
        (b"{nope}", "it is no JSON from line 1, column 2 on"),
        (b'{"a":', "it ends too early"),
        (b"[1]", "it is another kind of value, at line 1"),
    ]:
        status, answer = front.ask("/v1/completions", body)[:2]
        assert (status, said in answer) == (400, True), answer


def test_an_instance_with_another_model_is_refused_at_the_start(instance):
    other = instance("another")
    command = [binary(), "proxy", "--port=0", "--model=path/to/tiny", "-d", other.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "serves another" in done.stderr


def test_what_is_likely_a_mistake_is_said_at_the_start(proxy):
    said = proxy([], [], flags=["--host=0.0.0.0"]).output()
    assert "no decode instance is named: it answers requests when one is added" in said
    assert "the proxy asks nobody who he is" in said


def test_its_pages_and_its_log_tell_no_secret(instance, proxy):
    key, decode = "the-key-of-all-instances", instance()
    front = proxy([], [decode], env={"OPENAI_API_KEY": key})
    assert front.ask("/v1/completions", {"prompt": "a"})[0] == 200
    assert front.ask("/instances/add", {"type": "decode", "instance": "h:1"})[0] == 422
    told = [str(front.ask(page)[1]) for page in ("/", "/status", "/metrics", "/health")]
    assert not any(secret in text for secret in (key, ADMIN_KEY) for text in [*told, front.output()])


def test_its_log_is_json_where_that_is_asked_for(instance, proxy):
    decode = instance()
    front = proxy([], [decode], flags=["--log_format=json"])
    assert front.ask("/v1/completions", {"prompt": "a"})[0] == 200
    wait_for("the line of the request", lambda: "status=200" in front.output())
    lines = [json.loads(line) for line in front.output().splitlines() if line.startswith("{")]
    assert any("status=200" in line["message"] for line in lines)


def test_what_it_cannot_take_is_rejected_counted_and_a_problem(instance, proxy):
    decode = instance()
    front = proxy([], [decode], flags=["--max_body_size=8MB", "--max_bodies_size=1MB"])
    assert front.ask("/v1/completions", {"prompt": "a" * (2 << 20)})[0] == 429
    status = front.status()
    assert (status["totals"]["rejected"], status["totals"]["refused"]) == (1, 1)
    assert [one["code"] for one in status["problems"]] == ["rejected"]
    assert 'mooncake_proxy_rejected_total{full="bodies"} 1' in str(front.ask("/metrics")[1])


def test_status_tells_rates_times_and_the_past(instance, proxy):
    prefill, decode = instance(), instance()
    front = proxy([prefill], [decode])
    assert all(front.ask("/v1/completions", {"prompt": f"<{nth}>"})[0] == 200 for nth in range(4))
    status = front.status()
    assert (status["state"], status["totals"]["ok"], status["running"]) == ("serving", 4, 0)
    assert status["rates"]["requests"] == pytest.approx(status["rates"]["ok"]) != 0
    assert all(
        0 < status["latency_us"][of]["p50"] <= status["latency_us"][of]["p99"] for of in ("first_byte", "prefill")
    )
    for one in status["instances"]:
        assert one["latency_us"]["p99"] > 0
        assert one["requests_per_second"] > 0
        assert (one["down_seconds"], one["next_check_seconds"]) == (None, None)
    wait_for("a sample", lambda: any(front.status()["history"]["requests"]), 10)


def test_it_ends_in_order_at_sigterm(proxy):
    front = proxy([], [])
    assert front.ask("/health")[0] == 503
    assert front.terminate() == 0


FIRST_ROW = "(document.querySelector('#instances tbody tr')?.innerText ?? '')"


@pytest.mark.alone
def test_its_page_shows_the_instances_in_a_browser(instance, proxy, browse, tmp_path):
    prefill, decode, gone = instance(), instance(), instance()
    front = proxy([prefill, gone], [decode])
    assert front.ask("/v1/completions", {"prompt": "<b>"})[0] == 200
    page = browse()
    page.show(front.url + "/")
    page.until("document.querySelectorAll('#instances tbody tr').length === 3")
    text = page.text()
    for part in ("serving", "tiny", "Requests", "Time to first byte", "Under way", "0 of 1,024", "Failures"):
        assert part in text, f"{part}:\n{text}"
    assert "2 prefill, 1 decode" in text
    assert page.run("document.title") == "mooncake proxy: serving"

    # What is killed stands on top a few seconds later, and the tab says so.
    gone.stop()
    page.until(f"{FIRST_ROW}.includes({gone.address!r}) && {FIRST_ROW}.includes('down ')", 5)
    page.until("document.title === '1/3 down - mooncake proxy'", 5)
    rows = page.run("[...document.querySelectorAll('#instances tbody tr')].map(row => row.innerText)")
    by_address = {one.address: next(row for row in rows if one.address in row) for one in (prefill, decode, gone)}
    assert "decode" in by_address[decode.address]
    assert "down" not in by_address[decode.address]
    assert "cannot be reached" in by_address[gone.address]
    assert gone.address in page.run("document.querySelector('#problems').innerText")
    assert page.console == []
    # It is drawn, too.
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")

    # A proxy that is gone is no proxy that is well.
    front.kill()
    page.until("document.title === 'not answering - mooncake proxy'")
    assert "No answer from the proxy since" in page.text()


def test_its_page_shows_what_instances_say_as_text_and_whole_on_a_phone(instance, proxy, browse):
    front = proxy([], [instance()])
    told, hostile = front.status(), "<img src=x onerror=alert(1)>"
    (well,) = told["instances"]
    down = {"health": "out of service", "reason": hostile * 9, "down_seconds": 12.3, "next_check_seconds": 2.2}
    told["instances"] = [well, well | down | {"instance": hostile}]
    with browser.served(front.ask("/")[1], told) as url:
        page = browse(390, 844)
        page.show(url)
        page.until(f"{FIRST_ROW}.includes({hostile!r})")
        assert "down 12 s, next check in 3 s" in page.text()
        assert hostile * 9 in page.text()
        reason = "document.querySelector('#instances tbody .below')"
        assert page.run(f"{reason}.scrollHeight <= {reason}.clientHeight"), "nothing of it is cut off"
        assert page.run("document.querySelectorAll('img').length") == 0
        assert page.run("document.documentElement.scrollWidth <= window.innerWidth"), "a phone scrolls down only"
        assert page.console == []


def test_its_page_is_one_answer_that_names_no_other_host(instance, proxy):
    page = proxy([], [instance()]).ask("/")[1]
    # The name of SVG looks like an address, but nobody asks there.
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not any(loads in page for loads in ("src=", "@import", "url(", "innerHTML"))
