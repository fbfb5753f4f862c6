"""The proxy before vLLM servers with `MooncakeConnector`: same answers as of one server, under changes and kills."""

from prefill_decode import DecodeServer, PrefillServer
from proxied import proxied

KINDS = {"prefill": PrefillServer, "decode": DecodeServer}


def run(rig):
    folder = rig.new_folder()
    yield from proxied(lambda kind, name, _: KINDS[kind](rig, folder, name), folder, rig)
