"""``transfer_engine_bench`` for whoever calls it through Python (``mooncake.cli_bench:main``)."""

from typing import NoReturn

from mooncake.cli import run


def main() -> NoReturn:
    """Entry point of ``transfer_engine_bench``."""
    run("engine-bench")
