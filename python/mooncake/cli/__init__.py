"""``mooncake_master`` for whoever calls it through Python (``mooncake.cli:main``)."""

import os
import sys
import sysconfig
from typing import NoReturn

from mooncake import _clash

_clash.refuse()


def binary() -> str:
    """Path of the native ``mooncake`` binary of this environment."""
    candidates = [os.path.join(sysconfig.get_path("scripts"), "mooncake")]
    # `pip install --user` puts scripts elsewhere.
    candidates.append(os.path.join(sysconfig.get_path("scripts", f"{os.name}_user"), "mooncake"))
    for path in candidates:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"no executable 'mooncake' at {' or '.join(candidates)}; install {_clash.OURS} again")


def run(command: str) -> NoReturn:
    """Becomes ``mooncake COMMAND`` with this process's arguments, under the same pid."""
    path = binary()
    os.execv(path, [path, command, *sys.argv[1:]])


def main() -> NoReturn:
    """Entry point of ``mooncake_master``."""
    run("master")
