"""``transfer_engine_topology_dump`` for whoever calls it through Python (this module's ``main``)."""

from typing import NoReturn

from mooncake.cli import run


def main() -> NoReturn:
    """Entry point of ``transfer_engine_topology_dump``."""
    run("topology-dump")
