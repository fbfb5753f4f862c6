"""The manifests of deploy/kubernetes are what Kubernetes takes and what the chart says, and their pods work."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import manifests
import pytest
import yaml
from manifests import Container, containers, end, is_valid, kustomized, mebibytes, pods, rendered
from network import Network, NoNamespaces

from pool import Program, binary, wait_for

REPOSITORY = manifests.DEPLOY.parent
# What each component says in the words of the chart.
COMPONENTS = {
    "monitoring": {"serviceMonitor": {"enabled": True}},
    "network-policy": {"networkPolicy": {"enabled": True, "hostCIDRs": ["192.0.2.0/24"]}},
    "disruption-budget": {"master": {"disruptionBudget": {"enabled": True}}},
    "tier": {"node": {"tier": {"enabled": True, "hostPath": "/mnt/nvme/kv"}}},
    "pod-network": {"node": {"hostNetwork": False}},
}
ENGINE = """
import os
from mooncake.store import MooncakeDistributedStore
with MooncakeDistributedStore.connect("mooncake-master:50051", local_hostname="127.0.0.1") as store:
    value = os.urandom(3 << 20)
    assert store.put("key", value) == 0, store.last_error()
    assert store.get("key") == value, store.last_error()
"""
DUMMY = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup_dummy(16 << 20, 16 << 20, sys.argv[1]) == 0, store.last_error()
assert len(store.get("key")) == 3 << 20, store.last_error()
store.close()
"""


def without_marks_of_helm(found: manifests.Objects) -> manifests.Objects:
    for document in found.values():
        for label in ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"):
            del document["metadata"]["labels"][label]
    return found


@pytest.mark.parametrize("component", [None, *COMPONENTS])
def test_the_plain_manifests_are_valid_and_what_the_chart_renders(tmp_path, component):
    plain = kustomized(tmp_path, *([component] if component else []))
    is_valid(plain)
    assert plain == without_marks_of_helm(rendered(COMPONENTS.get(component)))


def test_all_components_go_together(tmp_path):
    is_valid(kustomized(tmp_path, *COMPONENTS))
    assert {path.name for path in (manifests.PLAIN / "components").iterdir()} == set(COMPONENTS)


def documents(path: Path) -> list[dict]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def plain_pods() -> dict[str, dict]:
    """Without any program: the pods of the files as they lie there."""
    files = [manifests.PLAIN / name for name in ("master.yaml", "node.yaml")]
    found = {
        (document["kind"], document["metadata"]["name"]): document for path in files for document in documents(path)
    }
    return dict(pods(found))


def test_they_are_of_no_namespace_and_name_no_latest_image():
    for path in manifests.PLAIN.rglob("*.yaml"):
        assert not re.search(r"^ *namespace:", path.read_text(), re.MULTILINE), path
    version = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
    for pod in plain_pods().values():
        assert [container["image"] for container in containers(pod)] == [f"mooncake-rs:{version}"]
    recipe = (manifests.DEPLOY / "container" / "Containerfile").read_text()
    assert {pod["securityContext"]["runAsUser"] for pod in plain_pods().values()} == {970}
    assert "--uid 970" in recipe


def test_a_nodes_limit_has_room_for_what_it_lends(tmp_path):
    for components, more in (((), 0), (("tier",), 256)):
        [node] = [pod for name, pod in pods(kustomized(tmp_path, *components)) if name == "mooncake-node"]
        [container] = node["containers"]
        [size] = [
            int(word.removeprefix("--global_segment_size=").removesuffix("GB"))
            for word in container["args"]
            if "segment_size" in word
        ]
        for kind in ("requests", "limits"):
            needed = size * 1024 + size * 1024 // 128 + 256 + more
            assert mebibytes(container["resources"][kind]["memory"]) == needed


def test_ports_of_the_host_are_free_when_a_node_starts():
    """An outgoing connection of the host may have any port of Linux' range for these, data any of the node's own."""
    outgoing, data = range(32768, 61000), range(12300, 14301)
    # The page names each port that a firewall has to guard.
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    for found in (plain_pods, lambda: dict(pods(rendered()))):
        pod = found()["mooncake-node"]
        assert pod["hostNetwork"]
        ports = [port["containerPort"] for one in containers(pod) for port in one["ports"]]
        assert len(set(ports)) == len(ports) == 2
        for port in ports:
            assert port not in outgoing
            assert port not in data
            assert re.search(rf"\b{port}\b", page)


# ---------------------------------------------------------------- settings


def supported(page: str, heading: str) -> set[str]:
    """Names of the first table below a heading: those with an effect."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0].split("\nAccepted without effect")[0]
    return set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_every_flag_and_variable_is_a_setting(tmp_path):
    """docs/settings.md is made of the programs' own tables, and a test of theirs holds it to them."""
    page = (REPOSITORY / "docs" / "settings.md").read_text()
    flags = {
        "mooncake_master": supported(page, "`mooncake_master`"),
        "mooncake_client": supported(page, "`mooncake_client`"),
        "mooncake": supported(page, "`mooncake keeper`"),
    }
    variables = supported(page, "Environment of clients") | supported(page, "Environment of every process")
    everything = {"tier": {"enabled": True, "hostPath": "/kv", "limitGiB": 100}, "keep": {"enabled": True}}
    shared = {"enabled": True, "claimName": "shared", "quotaGiB": 100}
    found = [*plain_pods().items(), *pods(kustomized(tmp_path, "tier"))]
    found += pods(rendered({"node": everything, "sharedTier": shared}))
    seen = set()
    for _, pod in found:
        for container in containers(pod):
            [program] = container["command"]
            for word in container["args"]:
                if word.startswith("--"):
                    name = re.match(r"--(\w+)", word)[1]
                    assert name in flags[program], word
                    seen.add(name)
            named = {variable["name"] for variable in container.get("env", [])}
            # POD_IP is there for the flags alone; /get_clients tells POD_NAME.
            assert named - {"POD_IP", "POD_NAME"} <= variables
    assert {"wal", "enable_offload", "keeper", "root_fs_dir"} <= seen
    assert "`POD_NAME`" in (REPOSITORY / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("wal", ["on", "off", "fsync", "true"])
def test_the_master_takes_its_flags(wal):
    [container] = plain_pods()["mooncake-master"]["containers"]
    flags = [re.sub("^--wal=.*", f"--wal={wal}", flag) for flag in container["args"]]
    done = subprocess.run([binary(), "master", *flags, "--check_config"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^wal +{wal} +", done.stdout, re.MULTILINE)


# ---------------------------------------------------------------- pods at work


@pytest.fixture
def network():
    if os.geteuid() != 0 or subprocess.run([*manifests.APART, "true"], capture_output=True).returncode != 0:
        pytest.skip("no further namespaces")
    try:
        made = Network()
    except NoNamespaces as e:
        pytest.skip(f"no network namespaces: {e}")
    with contextlib.closing(made):
        yield made


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text, of this thread's network; 0 where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def statuses(container: Container) -> list[int]:
    return [asked(port, path)[0] for port, path in container.probes().values()]


@contextlib.contextmanager
def ended(programs: dict[str, Program]):
    """All of them are, also where the end of one fails."""
    with contextlib.ExitStack() as ends:
        for program in programs.values():
            ends.callback(end, program)
        yield


def port_of(container: Container, name: str) -> int:
    [port] = [port["containerPort"] for port in container.spec["ports"] if port["name"] == name]
    return port


FIELDS = {"status.podIP": "127.0.0.1", "metadata.name": "mooncake-node-x7"}


def small(pod: dict) -> dict:
    """Lends 64 MB: this machine has other things to do with its memory."""
    for container in pod["containers"]:
        container["args"] = [re.sub("(--global_segment_size)=.*", r"\1=64MB", word) for word in container["args"]]
    return pod


def test_the_pods_work_as_they_are_written(tmp_path, network):
    """As their user, without a capability, and with nothing to write to but their volumes; by shared memory."""
    found = plain_pods()
    master = Container(found["mooncake-master"], "master", tmp_path, FIELDS)
    node = Container(small(found["mooncake-node"]), "node", tmp_path, FIELDS, hosts=("mooncake-master",))
    programs = {
        "master": master.program("Master service started on port 50051"),
        "node": node.program("Mooncake client ready"),
    }
    with network.inside(), ended(programs):
        # A node waits for its master: it lives, and is not ready.
        programs["node"].launch()
        wait_for("the node's probes", lambda: statuses(node) == [200, 200, 503], 15)
        programs["master"].start()
        assert statuses(master) == [200, 200, 200]
        wait_for("a node that is ready", lambda: statuses(node) == [200, 200, 200], 15)
        done = node.run(sys.executable, "-c", ENGINE)
        assert done.returncode == 0, done.stderr
        assert " path=shm " in done.stderr
        [client] = [one for one in json.loads(asked(9003, "/get_clients")[1])["clients"] if one["lent_bytes"]]
        assert client["name"].startswith("127.0.0.1:")
        # Callers of setup_dummy() name the port that the manifest has, on the address of the host.
        done = node.run(sys.executable, "-c", DUMMY, f"127.0.0.1:{port_of(node, 'find-pool')}")
        assert done.returncode == 0, done.stderr
        # The log is on the claim, and a new container goes on with it.
        end(programs["master"])
        programs["master"].start()
        wait_for("the object", lambda: asked(9003, "/query_key?key=key")[0] == 200, 15)
    assert "read-only" not in (said := programs["master"].output() + programs["node"].output()).lower(), said


def test_a_kept_node_comes_back_with_its_memory(tmp_path, network):
    """A crash of the node in a pod with a keeper beside it, and a tier on a volume."""
    values = {"node": {"keep": {"enabled": True}, "tier": {"enabled": True, "hostPath": "/kv", "limitGiB": 1}}}
    found = dict(pods(rendered(values)))
    pod = small(found["mooncake-node"])
    started = {
        "master": Container(found["mooncake-master"], "master", tmp_path, FIELDS).program("Master service started"),
        "keeper": Container(pod, "keeper", tmp_path, FIELDS).program("Mooncake keeper ready"),
    }
    node = Container(pod, "node", tmp_path, FIELDS, hosts=("mooncake-master",))
    started["node"] = node.program("Mooncake client ready")
    with network.inside(), ended(started):
        for program in started.values():
            program.start()
        keeper = Container(pod, "keeper", tmp_path, FIELDS)
        assert keeper.run(*keeper.spec["startupProbe"]["exec"]["command"]).returncode == 0
        done = node.run(sys.executable, "-c", ENGINE)
        assert done.returncode == 0, done.stderr
        end(started["node"])
        started["node"].start()
        wait_for("the object", lambda: asked(9003, "/query_key?key=key")[0] == 200)
        tenure = re.compile(r"^mooncake_client_memory_tenure\S* 2$", re.MULTILINE)
        wait_for("the second process of the memory", lambda: tenure.search(asked(9300, "/metrics")[1]))


# ---------------------------------------------------------------- the page


def test_the_examples_of_the_page_are_valid(tmp_path):
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    blocks = dict(re.findall(r"^ *```yaml (\S+)\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE))
    engine = manifests.objects(blocks["engine.yaml"])
    is_valid(engine)
    pod = engine["Pod", "vllm"]["spec"]
    [node] = [pod for name, pod in plain_pods().items() if name == "mooncake-node"]
    for shared in ("hostNetwork", "dnsPolicy", "enableServiceLinks"):
        assert pod[shared] == node[shared]
    assert pod["securityContext"]["runAsUser"] == node["securityContext"]["runAsUser"]
    assert json.loads(engine["ConfigMap", "pool"]["data"]["pool.json"])["master_server_address"].endswith(".svc:50051")
    # The overlay of the page, with this checkout where the page has one.
    (tmp_path / "overlay").mkdir()
    overlay = yaml.safe_load(textwrap.dedent(blocks["kustomization.yaml"]))
    seen_from_there = os.path.relpath(REPOSITORY, (tmp_path / "overlay").resolve())
    for listed in ("resources", "components"):
        overlay[listed] = [path.replace("../mooncake-rs", seen_from_there) for path in overlay[listed]]
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = manifests.run("kubectl", "kustomize", tmp_path / "overlay")
    assert done.returncode == 0, done.stderr
    images = {one["image"] for _, pod in pods(manifests.objects(done.stdout)) for one in containers(pod)}
    assert images == {"registry.example.com/mooncake-rs:0.1.0"}


def test_the_switches_of_the_page_are_values():
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    values = yaml.safe_load((manifests.CHART / "values.yaml").read_text())
    tops = "|".join(values)
    named = set(re.findall(rf"(?<![-\w])((?:{tops})(?:\.[a-zA-Z]+)+)(?=[`=, ])", page)) - {
        "image.repository",
        "image.tag",
    }
    assert len(named) > 15
    for name in named:
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]
