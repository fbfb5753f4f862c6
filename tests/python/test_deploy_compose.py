"""The services of deploy/container/compose.yaml work together as they are written, and share memory."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
import yaml
from network import Network, NoNamespaces

from pool import Program, binary, wait_for

RECIPES = Path(__file__).parents[2] / "deploy" / "container"
REPOSITORY = RECIPES.parents[1]
APART = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]


def services(**variables: str) -> dict:
    """As compose reads it: with its variables, and $$ for a dollar."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: variables.get(m[1], m[2]), (RECIPES / "compose.yaml").read_text())
    assert "$" not in text
    return yaml.safe_load(text)["services"]


def words(command: list[str]) -> list[str]:
    """A container's command with the programs of this environment."""
    own = {"python3": sys.executable}
    return [own.get(command[0], str(Path(binary()).with_name(command[0]))), *command[1:]]


def is_well(probe: list[str]) -> bool:
    return subprocess.run(probe, capture_output=True, timeout=5).returncode == 0


def test_the_services_work_together_and_share_memory(tmp_path):
    """Each in namespaces of its own, as containers are, but for the network."""
    if subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        pytest.skip("no further namespaces")
    try:
        network = Network()
    except NoNamespaces as e:
        pytest.skip(f"no network namespaces: {e}")
    found = services(MOONCAKE_SEGMENT_SIZE="64MB")
    env = {"MOONCAKE_STATE_DIR": str(tmp_path / "state")}
    ready = {"master": "Master service started on port 50051", "node": "Mooncake client ready"}
    with closing(network), ExitStack() as ends, network.inside():
        for name, line in ready.items():
            daemon = Program(name, [*APART, *words(found[name]["command"])], tmp_path / f"{name}.out", line, env)
            ends.callback(daemon.kill)
            daemon.start()
        for name in ready:
            kind, *probe = found[name]["healthcheck"]["test"]
            assert kind == "CMD"
            wait_for(f"health of the {name}", partial(is_well, words(probe)))
        engine = [*APART, *words(found["engine"]["command"])]
        done = subprocess.run(engine, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "hello\n"
        assert " path=shm " in done.stderr


def test_all_are_of_one_user_and_one_network():
    for name, service in services().items():
        assert (service["network_mode"], service["user"]) == ("host", "970:970"), name
    assert "--uid 970" in (RECIPES / "Containerfile").read_text()


def test_the_image_is_built_from_what_is_there():
    recipe = (RECIPES / "Containerfile").read_text()
    stages = re.findall(r"^FROM \S+(?: AS (\w+))?", recipe, re.MULTILINE)
    assert set(re.findall(r"from=(\w+)", recipe)) <= set(stages)
    assert "RUN make wheel" in recipe
    # The toolchain is not older than what the workspace asks for.
    asked = re.search(r'rust-version = "([\d.]+)"', (REPOSITORY / "Cargo.toml").read_text())[1]
    assert f"FROM rust:{asked}-" in recipe
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    assert {"target", "dist", ".venv"} <= set(ignored)
