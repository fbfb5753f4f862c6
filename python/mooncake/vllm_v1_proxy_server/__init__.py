"""``mooncake_proxy`` for whoever starts it as ``python -m mooncake.vllm_v1_proxy_server``."""

from typing import NoReturn

from mooncake.cli import run


def main() -> NoReturn:
    """Becomes ``mooncake_proxy`` with this process's arguments."""
    run("proxy")
