"""`mooncake state`: what masters have left on a machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from pool import Master, Program, binary, free_port


def state(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary(), "state", *args], capture_output=True, text=True, timeout=20, check=False)


def listed(folder: Path) -> dict:
    done = state("ls", f"--state_dir={folder}", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_in_use_stays_and_what_ended_goes_with_its_witness(tmp_path):
    master = Master(tmp_path, [])
    master.start()
    try:
        [folder] = listed(tmp_path)["folders"]
        assert (folder["name"], folder["in_use"], folder["holder"]) == ("log", True, f"pid {master.pid}")
        assert folder["bytes"] > 0
        witness = Path("/dev/shm") / f"mooncake-log-{folder['log_id']}"
        assert witness.exists()
        table = state("ls", f"--state_dir={tmp_path}").stdout
        assert f"in use, pid {master.pid}" in table
        refused = state("gc", f"--state_dir={tmp_path}", "--name=log")
        assert (refused.returncode, "in use" in refused.stderr) == (1, True)
    finally:
        assert master.terminate() == 0
    [folder] = listed(tmp_path)["folders"]
    assert folder["in_use"] is False
    # Nothing goes that was not named, and a look takes nothing.
    assert "what is to go?" in state("gc", f"--state_dir={tmp_path}").stderr
    shm = tmp_path / "no-witnesses"
    assert state("gc", f"--state_dir={tmp_path}", f"--witness_dir={shm}", "--older_than=1h").stdout == ""
    said = state("gc", f"--state_dir={tmp_path}", "--name=log", "--dry_run").stdout
    assert said == f"would be removed: {tmp_path / 'log'}\n"
    assert witness.exists()
    # A dry run refuses what the removal would refuse.
    own = tmp_path / "log" / "notes.txt"
    own.write_text("an operator's")
    for dry in ([], ["--dry_run"]):
        refused = state("gc", f"--state_dir={tmp_path}", "--name=log", *dry)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "notes.txt is no master's; remove the folder by hand" in refused.stderr
    own.unlink()
    gone = state("gc", f"--state_dir={tmp_path}", "--name=log")
    assert (gone.returncode, gone.stdout) == (0, f"removed: {tmp_path / 'log'}\n")
    assert not witness.exists()
    assert listed(tmp_path)["folders"] == []
    assert "no such state folder" in state("gc", f"--state_dir={tmp_path}", "--name=log").stderr


def test_another_port_is_another_pool_and_that_is_said(tmp_path):
    def start() -> str:
        flags = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--metrics_port=0", "--cluster_id=mine"]
        command = [binary(), "master", *flags, f"--rpc_port={free_port()}"]
        env = {**os.environ, "MOONCAKE_STATE_DIR": str(tmp_path)}
        daemon = Program("master", command, tmp_path / "master.out", "Master service started", env)
        daemon.start()
        said = daemon.output()
        assert daemon.terminate() == 0
        return said

    first = start()
    assert f"no log yet: one begins there path={tmp_path}/mine-" in first
    assert "another port" not in first
    second = start()
    [other, _] = sorted(path.name for path in tmp_path.glob("mine-*"))
    assert "this pool had a log under another port" in second
    assert other in second or _ in second


def test_a_command_that_is_none_is_named():
    done = state("prune")
    assert (done.returncode, '"prune"' in done.stderr, "mooncake state ls" in done.stderr) == (1, True, True)
    assert state("gc", "mooncake_cluster-50051").returncode == 1
    assert state().stderr.count("mooncake state ls") == 1
    for ask in ("--help", "help"):
        done = state(ask)
        assert (done.returncode, "mooncake state gc" in done.stdout) == (0, True)


def test_witnesses_of_no_folder_are_counted_and_listed_when_asked_for(tmp_path):
    for number in range(3):
        (tmp_path / f"mooncake-log-{number:016x}").write_bytes(bytes(4096))
    where = (f"--state_dir={tmp_path}/none", f"--witness_dir={tmp_path}")
    said = state("ls", *where).stdout
    assert "/none: there is no such folder" in said
    assert "3 not in use, of no folder here" in said
    assert "0000000000000002" not in said
    assert "0000000000000002" in state("ls", "--all", *where).stdout
