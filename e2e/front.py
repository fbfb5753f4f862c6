"""The proxy before vLLM servers, and clients that ask it all the time."""

import json
import threading
import time
import urllib.error
import urllib.request

from server import greedy

from pool import HOST, PoolError, Program, free_port

KEY = "open sesame"
TIMEOUT_S = 300
# Long enough that a server is killed while it generates.
TOKENS = 64


class Front:
    """`mooncake_proxy` with these servers."""

    def __init__(self, programs, folder, name, prefill, decode):
        self.port = free_port()
        command = [programs / "mooncake_proxy", "--model=tiny", f"--port={self.port}", "--health_interval=1s"]
        for flag, servers in (("--prefill", prefill), ("--decode", decode)):
            command += [flag, *[address(one) for one in servers]]
        log, variables = folder / f"{name}.log", {"ADMIN_API_KEY": KEY}
        self.program = Program(name, command, log, "listens on", variables, ends_with_parent=True).start(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.terminate(5)

    def _open(self, path, body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        return urllib.request.urlopen(
            urllib.request.Request(f"http://{HOST}:{self.port}{path}", data, headers), timeout=TIMEOUT_S
        )

    def status(self):
        with self._open("/status") as answer:
            return json.load(answer)

    def in_flight(self, server):
        """How many requests a server has."""
        return sum(one["in_flight"] for one in self.status()["instances"] if one["instance"] == plain(server))

    def change(self, what, kind, server):
        """Adds or removes an instance."""
        body = {"type": kind, "instance": address(server) if what == "add" else plain(server)}
        with self._open(f"/instances/{what}", body, {"X-API-Key": KEY}) as answer:
            return json.load(answer)["message"]

    def complete(self, text, tokens=TOKENS):
        """The ids of the tokens of a whole answer."""
        with self._open("/v1/completions", greedy(text, tokens)) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    def stream(self, text, tokens=TOKENS):
        """The ids of the tokens of a stream, and the error that ended it, if one did."""
        ids, error = [], None
        with self._open("/v1/completions", {**greedy(text, tokens), "stream": True}) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                error = event.get("error") or error
                for choice in event.get("choices", ()):
                    ids += choice.get("token_ids") or ()
        return ids, error


def plain(server):
    return f"{HOST}:{server.port}"


def address(server):
    """As the proxy wants it: with the port of its bootstrap service, if it has one."""
    bootstrap = getattr(server, "bootstrap_port", None)
    return plain(server) + (f":{bootstrap}" if bootstrap else "")


class Load:
    """Clients that ask for every text again and again, in streams."""

    def __init__(self, front, expected, clients=3):
        self.front, self.expected = front, expected
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.whole, self.broken, self.lost = 0, [], []
        self.threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(TIMEOUT_S)

    def _run(self, nth):
        texts = list(self.expected)
        while not self.ended.is_set():
            text = texts[nth % len(texts)]
            nth += 1
            try:
                ids, error = self.front.stream(text)
            except (OSError, ValueError, urllib.error.HTTPError) as failure:
                ids, error = [], f"{failure!r} {getattr(failure, 'fp', None) and failure.read()}"
            with self.lock:
                if error is None and ids == self.expected[text]:
                    self.whole += 1
                elif ids and ids == self.expected[text][: len(ids)]:
                    # It had begun, and what came of it was right.
                    self.broken.append(error)
                else:
                    self.lost.append((len(ids), error))

    def more(self, count):
        """Waits for `count` more whole answers."""
        goal, end = self.whole + count, time.monotonic() + TIMEOUT_S
        while self.whole < goal:
            if time.monotonic() > end:
                raise PoolError(f"{self.whole} of {goal} answers; lost {self.lost[:3]}, broken {self.broken[:3]}")
            time.sleep(0.05)
