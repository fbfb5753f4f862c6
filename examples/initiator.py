"""The transfer engine: reads and writes memory that a program in C (target.c) lends. It needs no master and no pool.

README.md says how to build the program.
"""

from __future__ import annotations

import argparse
import os
import subprocess

import numpy as np

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode


def use(engine: TransferEngine, target: subprocess.Popen[str]) -> None:
    """Reads what the target lends, writes it, and prints what the target then finds there."""
    assert target.stdout is not None
    # Name, address and size come by a channel of the application's own: here the target's first line.
    name, address, size = target.stdout.readline().split()
    print(f"target {name} lends {size} bytes")

    # The local end may be any memory; registering it is not needed.
    memory = np.zeros(int(size), np.uint8)
    local = memory.ctypes.data
    code = engine.transfer_sync_read(name, local, int(address), memory.nbytes)
    # The engine returns codes, and has no checked() as the store has. Nothing has moved for sure unless it is 0.
    if code != 0:
        raise RuntimeError(engine.last_error())
    print(f"read: {bytes(memory[:12]).decode()!r}")

    # The message reaches the target behind the bytes, so the target need not poll its memory.
    words = b"hello from Python\0"
    memory[: len(words)] = np.frombuffer(words, np.uint8)
    message = TransferNotify("written", "")
    if engine.transfer_sync(name, local, int(address), len(words), TransferOpcode.WRITE, message) != 0:
        raise RuntimeError(engine.last_error())
    print(f"the target found: {target.stdout.readline().strip()!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="./target", help="the program made of target.c")
    program: str = parser.parse_args().target

    # Engines have no authentication, and listen on all addresses of the host unless they are told otherwise.
    os.environ.setdefault("MC_TE_BIND_ADDRESS", "127.0.0.1")
    target = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    try:
        with TransferEngine() as engine:
            # The name that peers know this host by, how peers find each other, the protocol, and its devices (all).
            if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
                raise RuntimeError(engine.last_error())
            use(engine, target)
        code = target.wait(timeout=10)
        print(f"the target has ended with {code}")
        return code
    finally:
        target.kill()  # after a failure; a process that has ended is left alone


if __name__ == "__main__":
    raise SystemExit(main())
