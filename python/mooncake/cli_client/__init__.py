"""``mooncake_client`` for whoever calls it through Python (``mooncake.cli_client:main``)."""

from typing import NoReturn

from mooncake.cli import run


def main() -> NoReturn:
    """Entry point of ``mooncake_client``."""
    run("client")
