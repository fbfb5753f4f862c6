"""vLLM's MooncakeConnector: a prefill server, a decode server, and what a proxy asks of the two."""

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
import uuid

from rig import until
from server import Server, end_group

from pool import HOST, PoolError, free_port

# What cannot be had from the prefill server is computed: vLLM's default is to fail the request.
CONNECTOR = {
    "kv_connector": "MooncakeConnector",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
}
# How long either waits for the other. A decode server whose prefill server is gone waits a minute longer than it says.
SHORT_ABORT = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "1"}
# From a write's begin until its first bytes are on their way.
BEGUN_S = 0.3


def new_transfer():
    """A proxy makes one name for both halves of a request."""
    return f"transfer-{uuid.uuid4()}"


class PrefillServer(Server):
    """Computes prompts, and tells at `bootstrap` under which name it has them."""

    def __init__(self, rig, folder, name, environment=None, bootstrap_port=None):
        self.bootstrap_port = bootstrap_port or free_port()
        self.bootstrap = f"http://{HOST}:{self.bootstrap_port}"
        self.hold = folder / f"{name}.hold"
        self.held, self.writing = (folder / f"{name}.hold.{mark}" for mark in ("held", "writing"))
        own = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap_port), "MOONCAKE_E2E_HOLD": str(self.hold)}
        transfer = {**CONNECTOR, "kv_role": "kv_producer"}
        super().__init__(rig.python, rig.model, folder, name, transfer, {**own, **(environment or {})})

    def engine_id(self):
        with urllib.request.urlopen(f"{self.bootstrap}/query", timeout=10) as answer:
            return json.load(answer)["0"]["engine_id"]

    def prefill(self, text, transfer):
        parameters = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        return self.complete(text, 1, kv_transfer_params=parameters)

    @contextlib.contextmanager
    def writes_held(self):
        """No write begins during the block."""
        self.hold.touch()
        try:
            yield
        finally:
            self.hold.unlink()

    def path(self):
        """The path that its engine took to the last peer that it met."""
        links = [line for line in self.program.log.read_text(errors="replace").splitlines() if " link peer=" in line]
        return links[-1].split('path="')[1].split('"')[0] if links else None

    def failed_writes(self):
        return self.program.log.read_text(errors="replace").count("failed (ret=-1)")


class DecodeServer(Server):
    """Goes on from where a prefill server has come."""

    def __init__(self, rig, folder, name, environment=None):
        transfer = {**CONNECTOR, "kv_role": "kv_consumer"}
        super().__init__(rig.python, rig.model, folder, name, transfer, {**SHORT_ABORT, **(environment or {})})

    def decode(self, text, transfer, prefill):
        parameters = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": transfer,
            "remote_bootstrap_addr": prefill.bootstrap,
            "remote_engine_id": prefill.engine_id(),
        }
        return self.complete(text, kv_transfer_params=parameters)


def hand_over(prefill, decode, text):
    """A request as a proxy sends it: first to prefill, then to decode. What was generated, and how many tokens came."""
    before, transfer = decode.hits(), new_transfer()
    prefill.prefill(text, transfer)
    return decode.decode(text, transfer, prefill), decode.hits() - before


def hand_over_at_once(prefill, decode, text):
    """As `hand_over`, but decode is asked before prefill, and waits for it."""
    before, transfer = decode.hits(), new_transfer()
    answer = Asked(decode.decode, text, transfer, prefill)
    prefill.prefill(text, transfer)
    return answer.result(), decode.hits() - before


@contextlib.contextmanager
def stopped_in_mid_transfer(prefill, decode, text):
    """Within the block the decode server stands still while a transfer to it is under way. Yields its answer."""
    transfer = new_transfer()
    with prefill.writes_held():
        prefill.prefill(text, transfer)
        answer = Asked(decode.decode, text, transfer, prefill)
        until("the prefill server is about to write", prefill.held.exists)
        os.killpg(decode.program.pid, signal.SIGSTOP)
    try:
        until("the prefill server writes", prefill.writing.exists)
        time.sleep(BEGUN_S)
        if not prefill.writing.exists():
            raise PoolError("the write has ended while its target stood still")
        yield answer
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(decode.program.pid, signal.SIGCONT)


def kill(server):
    """Ends all of a server's processes at once."""
    end_group(server.program, signal.SIGKILL)


class Asked:
    """A request in the background."""

    def __init__(self, ask, *arguments):
        self.tokens = self.error = None
        self.thread = threading.Thread(target=self._run, args=(ask, arguments), daemon=True)
        self.thread.start()

    def _run(self, ask, arguments):
        try:
            self.tokens = ask(*arguments)
        except Exception as error:
            self.error = error

    def result(self):
        """What was generated; None if the request failed, with `error` saying how."""
        self.thread.join()
        return self.tokens
