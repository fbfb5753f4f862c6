"""The settings and commands of docs/quickstart-sglang.md, as far as SGLang runs on a processor.

Its server does not. So its own parser reads the command line, and its store class runs with the settings.
"""

import json
import os
import subprocess

import environment
from document import document

from scenarios.sglang_direct import converse

PARSE = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = parser.parse_args(sys.argv[1:])
print("parsed", options.hicache_storage_backend, options.hicache_storage_backend_extra_config)
"""


def run(rig):
    environment.add_sglang(rig.python)
    with document("quickstart-sglang.md", rig) as page:
        page.start_pool()
        given = (page.folder / "hicache.json").read_text()
        launch = page.text("sglang").replace("python3 -m sglang.launch_server", '"$PYTHON" -c "$PARSE"')
        variables = {**os.environ, **page.environment, "PYTHON": str(rig.python), "PARSE": PARSE}
        parsed = subprocess.run(
            ["bash", "-euc", launch], cwd=page.folder, env=variables, capture_output=True, text=True, check=False
        )
        good = f"parsed mooncake {given.strip()}" in parsed.stdout
        yield f"SGLang parses its command line {'' if good else parsed.stderr[-300:]}", good

        variables = page.text("environment").replace("export", "").split()
        variables = dict(one.split("=") for one in variables)
        standalone = json.loads((page.folder / "standalone.json").read_text())
        with converse(rig, page.folder, "by-file", json.loads(given)) as first:
            yield "the store runs with hicache.json", first.set(0, 4) == [True] * 4
        with converse(rig, page.folder, "by-variables", {}, variables=variables) as second:
            yield "and with the variables, and finds the pages", second.get(0, 4) == ["right"] * 4
        with converse(rig, page.folder, "standalone", standalone) as third:
            yield "and through the storage node of the host", third.get(0, 4) == ["right"] * 4
            yield "which stores as well", third.set(4, 4) == [True] * 4 and third.exists(0, 8) == 8
        yield f"every command of the page was looked at {page.unused()}", not page.unused()
