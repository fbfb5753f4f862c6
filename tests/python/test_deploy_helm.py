"""The chart of deploy/helm: Helm takes it, its objects are what Kubernetes takes, and wrong values are refused."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import manifests
import pytest
import yaml
from manifests import CHART, containers, helm, is_valid, pods, rendered, run

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
SWITCHES = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "grafanaDashboard")}
EVERYTHING = {
    "daemon set": {
        **SWITCHES,
        "image": {"repository": "registry.example.com/mooncake-rs", "tag": "1.2.3", "pullSecrets": [{"name": "pull"}]},
        "user": 0,
        "master": {
            "wal": "fsync",
            "extraArgs": ["--default_kv_lease_ttl=5s"],
            "extraEnv": [{"name": "RUST_LOG", "value": "info"}],
            "persistence": {"storageClassName": "fast", "accessMode": "ReadWriteOncePod"},
            "disruptionBudget": {"enabled": True},
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"operator": "Exists"}],
        },
        "node": {
            "hostPID": True,
            "segmentGiB": 100,
            "keep": {"enabled": True, "seconds": 30},
            "tier": {"enabled": True, "hostPath": "/mnt/nvme/kv", "limitGiB": 900},
            "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 4}},
            "affinity": {"nodeAffinity": {}},
        },
        "networkPolicy": {"enabled": True, "hostCIDRs": ["10.0.0.0/24"]},
        "sharedTier": {"enabled": True, "claimName": "shared", "quotaGiB": 4096},
    },
    "stateful set": {
        **SWITCHES,
        "node": {
            "kind": "StatefulSet",
            "hostNetwork": False,
            "replicas": 5,
            "tier": {"enabled": True, "claim": {"size": "1Ti", "storageClassName": "fast"}},
        },
        "networkPolicy": {"enabled": True},
    },
    "nodes of another size": {
        "master": {"enabled": False, "address": "mooncake-master:50051"},
        "node": {"hostNetwork": False},
        "networkPolicy": {"enabled": True},
        "serviceMonitor": {"enabled": True},
    },
    "no nodes": {"node": {"enabled": False}, "networkPolicy": {"enabled": True}, "serviceMonitor": {"enabled": True}},
}


def test_helm_finds_no_fault():
    done = run("helm", "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", EVERYTHING)
def test_all_that_can_be_switched_on_is_valid_and_hangs_together(name):
    found = rendered(EVERYTHING[name], release="kv")
    is_valid(found)
    assert all(name.startswith("kv-mooncake") for _, name in found)
    labels = {
        owner: (document["spec"]["template"]["metadata"]["labels"], document["spec"]["template"]["spec"])
        for (kind, owner), document in found.items()
        if kind in ("StatefulSet", "DaemonSet")
    }
    named = {
        owner: {port["name"] for one in pod["containers"] for port in one["ports"]}
        for owner, (_, pod) in labels.items()
    }
    for (kind, owner), document in found.items():
        spec = document.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if kind in ("ConfigMap", "PrometheusRule"):
            continue
        assert selector, kind
        # A ServiceMonitor selects Services, which have the labels of their pods.
        wanted = selector.get("matchLabels", selector)
        matched = [other for other, (own, _) in labels.items() if wanted.items() <= own.items()]
        assert matched == [owner], (kind, owner)
        asked = [port.get("targetPort", port.get("port")) for port in spec.get("ports", [])]
        asked += [end["port"] for end in spec.get("endpoints", []) + spec.get("podMetricsEndpoints", [])]
        asked += [port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]]
        assert {port for port in asked if isinstance(port, str)} <= named[owner], (kind, owner)
    for owner, (_, pod) in labels.items():
        mounted = {mount["name"] for one in containers(pod) for mount in one.get("volumeMounts", [])}
        claims = (
            found["StatefulSet", owner]["spec"].get("volumeClaimTemplates", [])
            if ("StatefulSet", owner) in found
            else []
        )
        there = {volume["name"] for volume in pod.get("volumes", [])} | {claim["metadata"]["name"] for claim in claims}
        assert mounted == there, owner
        for one in containers(pod):
            assert one["resources"]["limits"]["memory"], owner
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}, owner
    address = EVERYTHING[name].get("master", {}).get("address", "kv-mooncake-master:50051")
    for one in [one for owner, (_, pod) in labels.items() if owner.endswith("-node") for one in pod["containers"]]:
        assert f"--master_server_address={address}" in one["args"]
    assert (("Service", "kv-mooncake-master") in found) == address.startswith("kv-")


def test_a_release_that_has_the_charts_name_does_not_say_it_twice():
    assert ("Service", "mooncake-master") in rendered()
    assert ("Service", "my-mooncake-master") in rendered(release="my-mooncake")


def test_the_image_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    workspace = (manifests.DEPLOY.parent / "Cargo.toml").read_text()
    assert chart["appVersion"] == re.search(r'^version = "(.*)"', workspace, re.MULTILINE)[1]
    for _, pod in pods(rendered()):
        assert {one["image"] for one in containers(pod)} == {f"mooncake-rs:{chart['appVersion']}"}


@pytest.mark.parametrize(
    ("tags", "master", "node"),
    [
        ({"image": {"tag": "2"}}, "2", "2"),
        # As an upgrade has it in between.
        ({"image": {"tag": "1"}, "master": {"image": {"tag": "2"}}}, "2", "1"),
        ({"image": {"tag": "2"}, "node": {"image": {"tag": "1"}}}, "2", "1"),
    ],
)
def test_master_and_nodes_can_be_upgraded_apart(tags, master, node):
    tags = {**tags, "node": {**tags.get("node", {}), "keep": {"enabled": True}}}
    images = {name: {one["image"] for one in containers(pod)} for name, pod in pods(rendered(tags))}
    assert images == {"mooncake-master": {f"mooncake-rs:{master}"}, "mooncake-node": {f"mooncake-rs:{node}"}}


def test_another_tag_of_the_master_leaves_the_nodes_as_they_are():
    """Else Kubernetes would replace their pods in the same step."""
    before, after = rendered(), rendered({"master": {"image": {"tag": "9.9.9"}}})
    changed = [name for name in before if before[name] != after[name]]
    assert changed == [("StatefulSet", "mooncake-master")]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": {"tag": "latest"}}, "tag"),
        ({"master": {"image": {"tag": "latest"}}}, "tag"),
        ({"node": {"image": {"tag": "latest"}}}, "tag"),
        ({"node": {"image": {"repository": "another"}}}, "repository"),
        ({"nodes": {"segmentGiB": 8}}, "nodes"),
        ({"node": {"segmentGiB": "64GB"}}, "segmentGiB"),
        ({"node": {"segmentGiB": 0}}, "segmentGiB"),
        ({"node": {"kind": "Deployment"}}, "kind"),
        ({"node": {"httpPort": 93000}}, "httpPort"),
        ({"node": {"tier": {"enabled": True}}}, "name node.tier.hostPath"),
        ({"node": {"tier": {"enabled": True, "claim": {"size": "1Ti"}}}}, "set node.kind=StatefulSet"),
        ({"node": {"tier": {"enabled": True, "hostPath": "kv"}}}, "hostPath"),
        (
            {"node": {"kind": "StatefulSet", "tier": {"enabled": True, "hostPath": "/kv", "claim": {"size": "1Ti"}}}},
            "choose one",
        ),
        ({"node": {"extraArgs": ["keep"]}}, "extraArgs"),
        ({"master": {"wal": "sometimes"}}, "wal"),
        ({"clusterId": "a pool"}, "clusterId"),
        ({"master": {"enabled": False}}, "master.address"),
        ({"sharedTier": {"enabled": True}}, "name sharedTier.claimName"),
        ({"networkPolicy": {"enabled": True}}, "networkPolicy.hostCIDRs"),
        # A rule without peers lets all of them in.
        (
            {"networkPolicy": {"enabled": True, "hostCIDRs": ["10.0.0.0/8"], "monitoring": []}},
            "monitoring",
        ),
        ({"networkPolicy": {"clients": [{}]}}, "clients"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values, says):
    done = helm(values)
    assert done.returncode != 0
    assert says in done.stderr


def leaves(values: dict, schema: dict, path: str = "") -> set[str]:
    """Paths of values of which the schema does not say that it knows each key."""
    missing = set()
    known = schema.get("properties", {})
    for key, value in values.items():
        if key not in known:
            missing.add(f"{path}{key}")
        elif isinstance(value, dict) and not known[key].get("additionalProperties", True):
            missing |= leaves(value, known[key], f"{path}{key}.")
    return missing | {f"{path}{key} has no default" for key in known if key not in values and key != "global"}


def test_values_and_schema_know_the_same_names():
    assert leaves(VALUES, SCHEMA) == set()


def test_a_bare_on_of_yaml_is_taken():
    done = helm(yaml.safe_load("master: {wal: on}"))
    assert "--wal=true" in done.stdout, done.stderr


@pytest.mark.parametrize(("segment", "tier"), [(1, False), (64, False), (1000, True)])
def test_the_limit_of_a_node_has_room_for_what_it_lends(segment, tier):
    node = {"segmentGiB": segment, "extraMemoryMiB": 10, "tier": {"enabled": tier, "hostPath": "/kv"}}
    [one] = rendered({"node": node})["DaemonSet", "mooncake-node"]["spec"]["template"]["spec"]["containers"]
    assert f"--global_segment_size={segment}GB" in one["args"]
    needed = segment * 1024 * 129 // 128 + 256 + 10 + 256 * tier
    for kind in ("requests", "limits"):
        assert one["resources"][kind]["memory"] == f"{needed}Mi"
    assert one["resources"]["requests"]["cpu"] == "500m"


def test_rules_and_dashboard_are_those_of_the_files():
    """There is no second copy of either."""
    found = rendered(SWITCHES)
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert found["PrometheusRule", "mooncake"]["spec"] == alerts
    board = found["ConfigMap", "mooncake-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["mooncake.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
    # An object's annotation by `kubectl apply` has 256 KiB.
    assert len(board["data"]["mooncake.json"]) < 200_000
    for pattern, files in (("severity: warning", ["alerts.yaml"]), ('"schemaVersion"', ["dashboard.json"])):
        holders = [
            path.name for path in manifests.DEPLOY.rglob("*.*") if path.is_file() and pattern in path.read_text()
        ]
        assert holders == files


def test_the_package_has_what_the_templates_read(tmp_path):
    done = run("helm", "package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("mooncake-*.tgz")
    with tarfile.open(package) as inside:
        names = {Path(name).relative_to("mooncake").as_posix() for name in inside.getnames()}
    assert {"Chart.yaml", "values.schema.json", "files/alerts.yaml", "files/dashboard.json"} <= names
    assert ("DaemonSet", "mooncake-node") in rendered(chart=package)


def test_the_notes_name_what_is_there():
    done = run("helm", "install", "kv", CHART, "--namespace=pool", "--dry-run=client")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("\nNOTES:\n")[1]
    assert "kv-mooncake-master.pool.svc:50051" in notes
    assert "kubectl label node HOST mooncake-node=true" in notes
    assert "There is no authentication" in notes
