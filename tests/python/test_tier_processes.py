"""What the processes that write and read tiers may be: forked, and without io_uring."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from contents import version_of
from test_tiers import MEMORY, MIB, put_all, versions, wait_read

from pool import wait_for

pytestmark = pytest.mark.timeout(90)

WITHOUT_IO_URING = Path(__file__).parent / "without_io_uring.py"


def rings(pid: int) -> int:
    """Of io_uring, that a process has open."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return sum(link == "anon_inode:[io_uring]" for link in links)


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_where_io_uring_cannot_be_had_threads_write_and_read_the_tier(cluster, tmp_path, error):
    pool = cluster(nodes=0)
    env = {"MOONCAKE_STORAGE_ROOT_DIR": str(tmp_path / "tiers")}
    wrapper = [sys.executable, str(WITHOUT_IO_URING), str(error)]
    owner = pool.process(segment=MEMORY, env=env, wrapper=wrapper)
    reader = pool.process(wrapper=wrapper)
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    keys = [f"k{number}" for number in range(80)]
    put_all(pool.store(), keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    for peer in (owner, reader):
        got = peer.call("get_batch", keys)
        assert [version_of(key, one) for key, one in zip(keys, got, strict=True)] == [0] * len(keys)
        assert rings(peer.pid) == 0
    assert reader.call("get_offload_rpc_read_count") > 40


def test_forks_during_reads_spoil_none_and_a_child_keeps_no_folder(cluster, tmp_path):
    pool = cluster(nodes=0)
    env = {"MOONCAKE_STORAGE_ROOT_DIR": str(tmp_path / "tiers")}
    owner = pool.process(segment=MEMORY, env=env)
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    keys = [f"k{number}" for number in range(120)]
    put_all(pool.store(), keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    # One reads the files itself, the other one asks their owner, which forks as well.
    readers = [pool.process(), pool.process(env={"MC_SHM": "0"})]
    cold = keys[:80]
    for peer in [*readers, owner]:
        peer.call("run", FORKING)
    wrong, rounds = [], [0, 0]

    def reads(number: int) -> None:
        for _ in range(6):
            got = readers[number].call("get_batch", cold)
            wrong.extend(key for key, one in zip(cold, got, strict=True) if version_of(key, one) != 0)
            rounds[number] += 1

    threads = [threading.Thread(target=reads, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert rounds == [6, 6]
    children = [peer.call("run", FORKED) for peer in [*readers, owner]]
    try:
        assert all(len(of_one) >= 10 for of_one in children), children
        # The folder is free as soon as its owner closes, though its children live.
        owner.call("close")
        owner.kill()
        heir = pool.process(segment=MEMORY, env=env)
        wait_read(pool.store(), keys)
        assert len(list((tmp_path / "tiers").glob("mooncake-*"))) == 1
        assert versions(pool.store(), cold) == [0] * len(cold)
        heir.call("close")
    finally:
        for child in itertools.chain(*children):
            os.kill(child, signal.SIGKILL)


# Children that live on, made while calls are under way. A child does nothing.
FORKING = """
import os, threading, time
served.children, served.forks = [], True
def forks():
    while served.forks and len(served.children) < 40:
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(1)
        served.children.append(child)
        time.sleep(0.02)
served.forking = threading.Thread(target=forks)
served.forking.start()
"""
FORKED = """
served.forks = False
served.forking.join()
result = served.children
"""
