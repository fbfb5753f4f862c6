"""Threads and memory beside each other."""

from __future__ import annotations

import logging
import os

from mooncake import _native

_log = logging.getLogger("mooncake.store")


def bind_to_numa_node(node: int) -> None:
    """Runs the calling thread on a NUMA node and takes its new memory from there, as long as there is any.

    What cannot be done is a warning in the log, never an error.
    """
    if not isinstance(node, int):
        raise TypeError(f"node: an int is needed, not {type(node).__name__}")
    try:
        with open(f"/sys/devices/system/node/node{node}/cpulist") as file:
            cpus = _numbers(file.read())
        if cpus:
            os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        _log.warning("bind_to_numa_node: this thread cannot run on node %d: %s", node, error)
    try:
        _native._prefer_numa_node(node)
    except (OSError, OverflowError) as error:
        _log.warning("bind_to_numa_node: this thread cannot prefer the memory of node %d: %s", node, error)


def _numbers(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
