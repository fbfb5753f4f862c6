"""`vllm serve` on the loopback address, and what is asked of it."""

import contextlib
import json
import os
import random
import signal
import string
import subprocess
import urllib.request
from pathlib import Path

from pool import HOST, Program, free_port, wait_for

E2E = Path(__file__).resolve().parent
# The plugin, and what clients share with this process.
PYTHONPATH = os.pathsep.join(str(folder) for folder in (E2E / "plugin", E2E, E2E.parent / "testing"))
START_LIMIT_S = 600
REQUEST_LIMIT_S = 180
RESET_LIMIT_S = 60

# vLLM's CPU build without downloads and telemetry.
ENVIRONMENT = {
    "PYTHONPATH": PYTHONPATH,
    "VLLM_HOST_IP": HOST,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # The names of blocks must agree between processes.
    "PYTHONHASHSEED": "0",
    # For /reset_prefix_cache.
    "VLLM_SERVER_DEV_MODE": "1",
}

# What a machine without a GPU needs beside the options of the documents: nothing compiled, and no rounding that
# depends on how a prompt was split.
CPU_OPTIONS = ["--enforce-eager", "--dtype=float32", "--block-size=32", "--max-model-len=8192", "--max-num-seqs=4"]


def healthy(port):
    """Whether a vLLM server serves there."""
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2).close()
    except OSError:
        return False
    return True


def prompt(seed, tokens):
    """A text of exactly `tokens` tokens of the tiny model, the same for the same seed."""
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits + " .,", k=tokens))


class Server:
    """One `vllm serve`, its log in `folder`."""

    def __init__(self, python, model, folder, name, transfer, environment=None):
        self.port = free_port()
        command = [Path(python).parent / "vllm", "serve", model, "--served-model-name=tiny"]
        command += [f"--host={HOST}", f"--port={self.port}", *CPU_OPTIONS]
        if transfer:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        log = folder / f"{name}.log"
        env = {**ENVIRONMENT, **(environment or {})}
        self.program = Program(name, command, log, env=env, ends_with_parent=True, start_new_session=True).start()

    def __enter__(self):
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait(self):
        self.program.wait_ready(lambda: healthy(self.port), START_LIMIT_S, step=0.2)

    def ask(self, path, body=None, timeout=REQUEST_LIMIT_S, method=None):
        """The body of the answer to a GET, or to a POST of `body` as JSON."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.read().decode()

    def complete(self, text, tokens=24, **more):
        """The ids of the tokens that greedy decoding makes of `text`."""
        return json.loads(self.ask("/v1/completions", {**greedy(text, tokens), **more}))["choices"][0]["token_ids"]

    def metric(self, name):
        """The sum of a metric over its labels."""
        lines = self.ask("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def hits(self):
        """How many tokens of prompts came from outside of this server so far."""
        return int(self.metric("vllm:external_prefix_cache_hits_total"))

    def forget(self):
        """Forgets the blocks here; the pool keeps what it has."""
        self._reset("/reset_prefix_cache")

    def reset(self):
        """Forgets the blocks here and, through the connector, in the pool."""
        self._reset("/reset_prefix_cache?reset_external=true")

    def _reset(self, path):
        """vLLM refuses while blocks are in use, for instance because they are still being stored."""

        def succeeds():
            return json.loads(self.ask(path, method="POST"))["success"]

        wait_for(f"success of {path}", succeeds, RESET_LIMIT_S, 0.05)

    def stop(self):
        end_group(self.program, signal.SIGTERM)


def end_group(program, first):
    """Ends a program that leads a session, and everything that it started: with signal `first`, then with SIGKILL."""
    for number, timeout in ((first, 30), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(timeout)


def greedy(text, tokens):
    """What asks for greedy decoding. Ids of tokens, because random bytes are no text."""
    return {
        "model": "tiny",
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
