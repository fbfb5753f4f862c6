"""The alert rules and the dashboard of deploy/ ask for metrics that are there, as they are meant to be asked for."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import manifests
import pytest
import yaml

from pool import free_port, wait_for

REPOSITORY = manifests.DEPLOY.parent
FILES = manifests.CHART / "files"
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
# What Prometheus, its operator and histograms add to the labels of docs/metrics.md.
ADDED_LABELS = {"namespace", "job", "instance", "le"}
# Parts of metrics of several values.
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count", "")}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every name that a page of metrics may have."""
    found = {}
    row = r"^\| `(\w+)(?:\{([\w,]+)\})?` \| (\w+) \|"
    for name, labels, kind in re.findall(row, (REPOSITORY / "docs" / "metrics.md").read_text(), re.MULTILINE):
        for part in PARTS.get(kind, ("",)):
            of_part = "counter" if part else kind
            found[name + part] = (of_part, {label for label in labels.split(",") if label})
    return found


# `up` is of Prometheus itself: whether a target answered.
METRICS = {**documented(), "up": ("gauge", set())}


class Asked:
    """A metric that a query asks for: how, and by which labels."""

    def __init__(self, name: str, is_range: bool, labels: set[str]):
        self.name, self.is_range, self.labels = name, is_range, labels


def asked(query: str) -> list[Asked]:
    """What a query asks for. Skips where nothing parses it."""
    promql = pytest.importorskip("promql_parser")
    # Grafana puts an interval in.
    parsed = promql.parse(query.replace("$__rate_interval", "5m"))
    found: list[Asked] = []

    def look(node, is_range: bool, grouped: set[str]) -> None:
        if isinstance(node, promql.MatrixSelector):
            look(node.vector_selector, True, grouped)
        elif isinstance(node, promql.VectorSelector):
            found.append(Asked(node.name, is_range, grouped | {matcher.name for matcher in node.matchers.matchers}))
        elif isinstance(node, promql.AggregateExpr):
            look(node.expr, False, grouped | set(node.modifier.labels if node.modifier else ()))
        elif isinstance(node, promql.Call):
            for argument in node.args:
                look(argument, False, grouped)
        elif isinstance(node, promql.BinaryExpr):
            look(node.lhs, False, grouped)
            look(node.rhs, False, grouped)
        elif isinstance(node, promql.ParenExpr | promql.UnaryExpr):
            look(node.expr, False, grouped)
        else:
            assert isinstance(node, promql.NumberLiteral | promql.StringLiteral), node

    look(parsed, False, set())
    assert found, query
    return found


def panels() -> list[dict]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Of all rules and panels, with what has them."""
    of_panels = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return [(rule["alert"], rule["expr"]) for rule in RULES] + of_panels


def test_they_ask_for_metrics_that_there_are():
    for who, query in queries():
        for metric in asked(query):
            assert metric.name in METRICS, f"{who}: {query}"
            kind, labels = METRICS[metric.name]
            assert metric.labels <= labels | ADDED_LABELS, f"{who}: {query}"
            # How fast a counter grows tells something, and a gauge does not grow. (`info` is looked for in the past.)
            is_remembered = f"last_over_time({metric.name}[" in query
            assert is_remembered or metric.is_range == (kind == "counter"), f"{who}: {metric.name} in {query}"


def test_a_live_pool_tells_all_of_them(cluster, tmp_path):
    """On the pages of a master, and of a node that has memory and a tier."""
    http, folder = free_port(), tmp_path / "tier"
    flags = ["--enable_offload", "--enable_http_server", "--http_host=127.0.0.1", f"--http_port={http}"]
    env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder), "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(1 << 30)}
    pool = cluster(nodes=1, node_bytes=32 << 20, node_flags=flags, env=env)
    store = pool.store()
    assert store.put("k", bytes(4096)) == 0
    assert len(store.get("k")) == 4096
    wait_for(
        "a tier of which its owner has told", lambda: "mooncake_tier_errors_total{" in pool.master.http("/metrics")
    )
    wait_for("an object on the tier", lambda: pool.metric("mooncake_tier_written_objects_total"))
    node = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5).read().decode()
    page = pool.master.http("/metrics") + node
    lines = set(re.findall(r"^(\w+)(?:\{.*\})? \S+$", page, re.MULTILINE))
    # Of a node with --keep.
    lines.add("mooncake_client_segments_awaiting_former_users")
    missing = {metric.name for _, query in queries() for metric in asked(query)} - lines - {"up"}
    assert missing == set()
    for name, (_, labels) in METRICS.items():
        for told in re.findall(rf"^{name}\{{(.*)\}} \S+$", page, re.MULTILINE):
            keys = set(re.findall(r'(\w+)="', told)) - {"le", "client_mode"}
            assert labels - {"quantile"} <= keys <= labels, name


# ---------------------------------------------------------------- alerts


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule):
    assert re.fullmatch(r"Mooncake[A-Z]\w+", rule["alert"])
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"}, {"severity": "info"})
    said = rule["annotations"]
    assert set(said) == {"summary", "description", "runbook"}
    assert len(said["summary"]) < 100
    page, _, anchor = said["runbook"].partition("#")
    assert anchor in anchors(REPOSITORY / page), said["runbook"]
    # Flags, variables, pages and metrics that the remedy names.
    flags = "".join((REPOSITORY / "docs" / "settings.md").read_text())
    for name in re.findall(r"--(\w+)", said["description"]) + re.findall(r"\bMOONCAKE_\w+", said["description"]):
        assert f"`{name}`" in flags, name
    for name in re.findall(r"\b(?:mooncake|master)_[a-z_]*[a-z]\b", said["description"]):
        assert name in METRICS or name in ("mooncake_client", "mooncake_master"), name


def test_alerts_have_names_of_their_own():
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 20


# Of each alert: series in which it is meant to fire after half an hour, and those in which it is not. A value a minute;
# "0+5x60" begins at 0 and grows by 5.
GROWS, STANDS = "0+5x60", "7+0x60"


def histogram(name: str, seconds: float) -> dict[str, str]:
    """Of requests that all took so long."""
    bounds = ("0.01", "0.05", "0.1", "0.2", "0.5", "+Inf")
    return {f'{name}_bucket{{le="{le}"}}': GROWS if float(le) >= seconds else "0+0x60" for le in bounds}


CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "MooncakeMasterAbsent": ({"mooncake_master_info": "1x20 _x40"}, {"mooncake_master_info": "1x60"}),
    "MooncakeNoMemory": ({"master_total_capacity_bytes": "0x60"}, {"master_total_capacity_bytes": "1x60"}),
    "MooncakeRefusals": (
        {'mooncake_refusals_total{kind="version"}': GROWS},
        {'mooncake_refusals_total{kind="unknown_session"}': GROWS, 'mooncake_refusals_total{kind="version"}': STANDS},
    ),
    "MooncakeLogLost": ({"mooncake_log_lost": "0x20 1x40"}, {"mooncake_log_lost": "0x60"}),
    "MooncakeSnapshotsFail": ({"master_snapshot_fail": GROWS}, {"master_snapshot_fail": STANDS}),
    "MooncakeLogFsyncSlow": (
        histogram("mooncake_log_fsync_duration_seconds", 0.2),
        histogram("mooncake_log_fsync_duration_seconds", 0.05),
    ),
    "MooncakeLogAppendSlow": (
        histogram("mooncake_log_append_duration_seconds", 0.5),
        histogram("mooncake_log_append_duration_seconds", 0.01),
    ),
    "MooncakeClientsAway": ({"mooncake_sessions_away": "0x25 2x40"}, {"mooncake_sessions_away": "0x28 2x40"}),
    "MooncakeSegmentsHidden": ({"mooncake_segments_hidden": "1x60"}, {"mooncake_segments_hidden": "1x25 0x40"}),
    "MooncakeSegmentsClosed": ({"mooncake_segments_closed": "1x60"}, {"mooncake_segments_closed": "0x25 1x40"}),
    "MooncakeClientsExpired": (
        {"mooncake_sessions_expired_total": "0x25 1x40"},
        {"mooncake_sessions_expired_total": "0x10 1x40"},
    ),
    "MooncakePutsFindNoRoom": ({"mooncake_put_full_total": GROWS}, {"mooncake_put_full_total": "0x29 5x40"}),
    "MooncakePutsTooLarge": ({"mooncake_put_too_large_total": GROWS}, {"mooncake_put_too_large_total": STANDS}),
    "MooncakeRoomHeld": (
        {
            "mooncake_pinned_bytes": "40x60",
            "mooncake_unfinished_bytes": "10x60",
            "mooncake_quarantined_bytes": "10x60",
            "master_total_capacity_bytes": "100x60",
        },
        {
            "mooncake_pinned_bytes": "40x60",
            "mooncake_unfinished_bytes": "5x60",
            "mooncake_quarantined_bytes": "5x60",
            "master_total_capacity_bytes": "100x60",
        },
    ),
    "MooncakeLookupThenMiss": (
        {"mooncake_lookup_then_miss_total": "0+2x60", "mooncake_exists_hits_total": "0+100x60"},
        {"mooncake_lookup_then_miss_total": "0+1x60", "mooncake_exists_hits_total": "0+1000x60"},
    ),
    "MooncakeProtectionBroken": (
        {"mooncake_protection_broken_total": GROWS},
        {"mooncake_protection_broken_total": "0x20 5x40"},
    ),
    "MooncakeTiersHidden": ({"mooncake_tiers_hidden": "1x60"}, {"mooncake_tiers_hidden": "0x25 1x40"}),
    "MooncakeTiersRefusing": ({"mooncake_tiers_refusing": "1x60"}, {"mooncake_tiers_refusing": "0x60"}),
    "MooncakeTierErrors": (
        {'mooncake_tier_errors_total{tier="n:1/07",kind="read"}': GROWS},
        {'mooncake_tier_errors_total{tier="n:1/07",kind="read"}': "0x20 2x40"},
    ),
    "MooncakeTierLacksRoom": (
        {'mooncake_tier_lacks_room{tier="n:1/07"}': "1x60"},
        {'mooncake_tier_lacks_room{tier="n:1/07"}': "0x60"},
    ),
    "MooncakeEvictionsUnwritten": (
        {"mooncake_evicted_unwritten_objects_total": "0+10x60", "mooncake_evicted_clean_objects_total": "0+90x60"},
        {"mooncake_evicted_unwritten_objects_total": "0+1x60", "mooncake_evicted_clean_objects_total": "0+99x60"},
    ),
    "MooncakeTierWear": (
        {'mooncake_tier_fills_per_day{tier="n:1/07"}': "6x100"},
        {'mooncake_tier_fills_per_day{tier="n:1/07"}': "4x100"},
    ),
    "MooncakeQuarantineOld": (
        {"mooncake_quarantine_age_seconds": "0+60x60"},
        {"mooncake_quarantine_age_seconds": "100x60"},
    ),
    "MooncakeBadReplicas": ({"mooncake_bad_replicas_total": "0x20 1x40"}, {"mooncake_bad_replicas_total": STANDS}),
    "MooncakeEpochsFast": ({"mooncake_epoch_raises_total": "1x5 6x60"}, {"mooncake_epoch_raises_total": "0x20 1x60"}),
}


def in_pool(namespace: str, job: str, series: dict[str, str]) -> list[dict[str, str]]:
    """Each case is a pool of its own."""
    labels = f'namespace="{namespace}",job="{job}"'
    split = [(name.removesuffix("}").partition("{"), values) for name, values in series.items()]
    return [
        {"series": f"{name}{{{','.join(filter(None, [labels, own]))}}}", "values": values}
        for (name, _, own), values in split
    ]


def test_each_alert_fires_where_it_is_meant_to_and_nowhere_else(tmp_path):
    assert set(CASES) == {rule["alert"] for rule in RULES}
    checked = manifests.run("promtool", "check", "rules", "--lint=all", "--lint-fatal", FILES / "alerts.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    pools = {"fires": 0, "quiet": 1}
    series = [
        one for name, cases in CASES.items() for where, at in pools.items() for one in in_pool(where, name, cases[at])
    ]
    at = {"MooncakeTierWear": "90m"}
    # No alert is expected, so it tells those that there are, with their texts.
    tests = [{"eval_time": at.get(name, "30m"), "alertname": name, "exp_alerts": []} for name in CASES]
    # Long after the last metrics of a master whose pod never serves again, while another pool is well: of that one a
    # target does not answer beside one that does. And other software has masters, too.
    well = {"mooncake_master_info": "1x450", "up": "1x450"}
    forgotten = [
        *in_pool("fires", "kv-mooncake-master", {"mooncake_master_info": "1x20 _x430", "up": "1x20 0x430"}),
        *in_pool("quiet", "mooncake-master", well),
        *in_pool("quiet", "mooncake-master", {'up{instance="replaced"}': "0x450"}),
        *in_pool("quiet", "another-master", {"up": "0x450"}),
    ]
    later = {"interval": "1m", "input_series": forgotten}
    later["alert_rule_test"] = [{"eval_time": "7h", "alertname": "MooncakeMasterAbsent", "exp_alerts": []}]
    nothing = {"interval": "1m", "input_series": [{"series": "up", "values": "1x60"}]}
    nothing["alert_rule_test"] = [{"eval_time": "30m", "alertname": "MooncakeMasterAbsent", "exp_alerts": []}]
    given = {
        "rule_files": [str(FILES / "alerts.yaml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": tests}, later, nothing],
    }
    (tmp_path / "rules.test.yaml").write_text(yaml.safe_dump(given))
    done = manifests.run("promtool", "test", "rules", tmp_path / "rules.test.yaml")
    said = done.stdout + done.stderr
    assert "error expanding" not in said, said
    firing = []
    for labels in re.findall(r"Labels:\{(.*?)\}", said):
        found = dict(re.findall(r'(\w+)="(.*?)"', labels))
        firing.append((found["alertname"], found.get("namespace", ""), found.get("job", "")))
    # A master that never was there has no labels.
    absent = "MooncakeMasterAbsent"
    meant = [*((name, "fires", name) for name in CASES), (absent, "fires", "kv-mooncake-master"), (absent, "", "")]
    assert sorted(firing) == sorted(meant), said


@pytest.mark.parametrize("release", ["mooncake", "kv"])
def test_the_alert_knows_the_job_of_the_charts_master(release):
    """The operator's job is the name of the Service, unless the monitor names a label for it."""
    [rule] = [rule for rule in RULES if rule["alert"] == "MooncakeMasterAbsent"]
    found = manifests.rendered({"serviceMonitor": {"enabled": True}}, release=release)
    [service] = [name for kind, name in found if kind == "Service"]
    assert re.fullmatch(re.search(r'up\{job=~"(.*?)"\}', rule["expr"])[1], service)
    assert found["Service", service]["spec"]["publishNotReadyAddresses"]
    [monitor] = [document["spec"] for (kind, _), document in found.items() if kind == "ServiceMonitor"]
    assert "jobLabel" not in monitor


# ---------------------------------------------------------------- dashboard


def test_the_dashboard_is_one_that_grafana_loads():
    assert DASHBOARD["id"] is None, "an import gives it one"
    assert DASHBOARD["schemaVersion"] >= 38, "Grafana 10"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries"), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0, panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        for target in panel["targets"]:
            named = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
            assert named <= set(variables), target["expr"]
            # Of each legend: the labels that its query leaves.
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                [*metrics] = asked(target["expr"])
                assert all(label in METRICS[metric.name][1] for metric in metrics), target["expr"]


def test_its_panels_come_in_order_and_lie_side_by_side():
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Is it well?", "Memory", "Hit ratio", "Traffic", "Latency", "Tiers", "Clients", "Safety", "Log"]
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in DASHBOARD["panels"]]
    assert places == sorted(places)
