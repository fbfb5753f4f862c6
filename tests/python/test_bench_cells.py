"""What the comparison measures is checked before it measures anything."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import against
import compare
import pytest
import scale_cells
import tier_cells
from cells import Session
from rig import Implementation

BENCH = Path(__file__).resolve().parents[2] / "bench"


def asked_for(cells):
    return subprocess.run(
        [sys.executable, BENCH / "compare.py", "--cells", cells], capture_output=True, text=True, timeout=60
    )


def test_an_unknown_cell_is_named_at_once_with_those_that_exist():
    for cells, unknown in [("data,nonsense", "nonsense"), ("__init__", "__init__"), ("data,", "''")]:
        result = asked_for(cells)
        assert result.returncode == 2, result
        assert "Traceback" not in result.stderr, result.stderr
        assert unknown in result.stderr, result.stderr
        for part in compare.PARTS:
            assert part in result.stderr.splitlines()[-1], (part, result.stderr)
        assert "repeat" not in result.stdout


def test_a_trace_that_is_replayed_finds_more_with_a_disk_and_no_wrong_byte():
    done = subprocess.run(
        [sys.executable, BENCH / "tier_hits.py", "--requests", "600"],
        env={**os.environ, "PYTHONPATH": str(BENCH.parent / "testing")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"memory (alone|and disk): ([0-9.]+) % .* 0 wrong", done.stdout)
    assert [where for where, _ in found] == ["alone", "and disk"], done.stdout
    assert float(found[1][1]) > 1.5 * float(found[0][1]), done.stdout
    [written] = re.findall(r"written for each admitted: ([0-9.]+)", done.stdout)
    assert 1 < float(written) < 1.5, done.stdout


def test_the_cells_that_can_be_asked_for_are_those_that_a_session_has():
    methods = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    assert set(compare.PARTS) == methods
    assert set(compare.MEASURED) <= methods
    assert compare.parts(" data , tcp") == ["data", "tcp"]


def figures(**medians):
    """Of cells by implementation, with five repeats around each median."""
    found = compare.Figures()
    for name, cells in medians.items():
        for cell, median in cells.items():
            for factor in (0.5, 1, 1, 1, 3):
                found.add(name.replace("_", "-"), cell, median * factor, "data")
    return found


def judged(found, again=None):
    return {row["cell"]: row for row in against.judge(compare.expectations(), found, again)}


def test_a_rate_may_lose_a_twentieth_and_a_latency_gain_one():
    ours = {"put_from 1 MiB": 9.6, "get_into 1 MiB": 9.4, "put 4 KiB, p50": 10.4, "get 4 KiB, p50": 10.6}
    rows = judged(figures(ours=ours, before=dict.fromkeys(ours, 10.0)))
    assert {cell: row["met"] for cell, row in rows.items()} == dict(zip(ours, (True, False, True, False), strict=True))
    assert against.missed(rows.values()) == ["get_into 1 MiB", "get 4 KiB, p50"]
    assert {row["samples"] for row in rows.values()} == {5}


def test_what_is_no_promise_is_shown_without_a_verdict():
    cells = dict.fromkeys(("master start", "direct, p50", against.proxy_cells.PYTHON, "engine read 1 MiB, CPU, TCP"), 1)
    rows = judged(figures(ours=cells, before=dict.fromkeys(cells, 2), ours_tcp=cells, before_tcp=cells))
    assert set(rows) == set(cells)
    assert {row["met"] for row in rows.values()} == {None}


def test_cells_over_tcp_are_compared_with_those_over_tcp():
    cell = "put_from 1 MiB, TCP"
    rows = judged(figures(ours_tcp={cell: 3}, before_tcp={cell: 4}, ours={cell: 10}, before={cell: 1}))
    assert rows[cell]["ratio"] == 0.75


def test_each_rival_has_a_bar_of_its_own_and_is_compared_by_the_same_path():
    within, tcp = "engine write 4 KiB, p50", "engine write 64 KiB, p50, TCP"
    found = figures(ours={within: 4}, ours_tcp={tcp: 9}, rival={within: 20}, nixl={within: 5}, nixl_tcp={tcp: 18})
    rows = {row["cell"]: row for row in compare.judge(found)}
    assert (rows[within]["ratio"], rows[within]["ratio to nixl"], rows[within]["met"]) == (0.2, 0.8, [True, True])
    assert (rows[tcp]["ratio"], rows[tcp]["ratio to nixl"], rows[tcp]["met"]) == (None, 0.5, [])
    slower = {row["cell"]: row["met"] for row in compare.judge(figures(ours={within: 6}, nixl={within: 5}))}
    assert slower == {within: [False]}
    assert "| engine write 4 KiB, p50 | us | 4 | 20.0 | 0.20 | 5 | 0.80 |" in compare.markdown(rows.values())


def test_a_batch_from_a_disk_is_twice_as_fast_as_the_rival_or_as_fast_as_the_disk():
    cell, disk = "tier batch get 32 x 1 MiB", "disk read 1 MiB, QD 32"
    for ours, met in ((4.0, True), (1.7, True), (1.5, False)):
        rows = {row["cell"]: row for row in compare.judge(figures(ours={cell: ours, disk: 2.0}, rival={cell: 1.5}))}
        assert (rows[cell]["met"], rows[disk]["met"]) == ([met], []), ours
    by_tcp = figures(ours={cell: 9, disk: 9}, ours_tcp={f"{cell}, TCP": 2.0, f"{disk}, TCP": 2.5})
    rows = {row["cell"]: row for row in compare.judge(by_tcp)}
    assert (rows[f"{cell}, TCP"]["share"], rows[cell]["share"]) == (0.8, 1.0), "each beside what its disk did then"


def test_a_rival_counts_with_the_better_of_its_two_ways_to_read(monkeypatch, tmp_path):
    rival, said = Implementation("rival", sys.executable), []

    def reads(implementation, seconds, record, folder, shape):
        uring = implementation.environment[tier_cells.URING]
        if uring in fails:
            raise tier_cells.RigError("not all came to the disk")
        for rate in {"false": (1.0, 1.2, 3.0), "true": (0.9, 1.4, 1.5)}[uring]:
            record(f"tier batch get {shape}", rate)
        record("tier get 1 MiB, p50", {"false": 300, "true": 200}[uring])

    def measured():
        said.clear()
        tier_cells._better_reads(rival, 1, lambda cell, figure: said.append(figure), tmp_path, "32 x 1 MiB")
        return said

    monkeypatch.setattr(tier_cells, "_reads", reads)
    fails = set()
    assert measured() == [0.9, 1.4, 1.5, 200]
    fails = {"true"}
    assert measured() == [1.0, 1.2, 3.0, 300]
    fails = {"true", "false"}
    with pytest.raises(tier_cells.RigError, match=r"=false: not all.*=true: not all"):
        measured()


def test_what_was_measured_again_counts_for_its_cells_alone():
    first = figures(ours={"put 1 MiB": 1, "get 1 MiB": 2}, before={"put 1 MiB": 2, "get 1 MiB": 2})
    rows = judged(first, figures(ours={"put 1 MiB": 2}, before={"put 1 MiB": 2}))
    assert (rows["put 1 MiB"]["met"], rows["get 1 MiB"]["met"]) == (True, True)
    rows = judged(first, figures(ours={"get 1 MiB": 1}, before={"get 1 MiB": 2}))
    assert (rows["put 1 MiB"]["met"], rows["get 1 MiB"]["met"]) == (False, False)


def test_a_cell_without_a_figure_misses_unless_the_earlier_wheel_has_none():
    rows = judged(figures(ours={"put 1 MiB": 1}, before={"get 1 MiB": 1}))
    assert (rows["put 1 MiB"]["met"], rows["get 1 MiB"]["met"]) == (None, False)
    assert "| get 1 MiB | GB/s | - | 1 | - | 0 | >= 0.95 | **no** |" in against.markdown(rows.values(), compare.short)


def test_two_are_measured_cell_by_cell_in_turn_and_one_goes_on_where_the_other_fails():
    said, ended = [], []

    def cells(name, count):
        try:
            for number in range(count):
                said.append(f"{name}{number}")
                yield
            if name == "b":
                raise ValueError("no more")
        finally:
            ended.append(name)

    failed = []
    steps = {"a": cells("a", 4), "b": cells("b", 2)}
    against.in_turn(steps, ["b", "a"], lambda name, error: failed.append(f"{name}: {error}"))
    assert said == ["b0", "a0", "b1", "a1", "a2", "a3"]
    assert (failed, ended) == (["b: no more"], ["b", "a"])


def test_parts_yield_behind_each_cell_and_are_called_for_some_of_them():
    for part in compare.PARTS:
        assert inspect.isgeneratorfunction(getattr(Session, part)), part
    assert set(against.LATENCIES) < set(compare.expectations())


def test_what_is_no_wheel_is_refused_at_once_with_the_command_that_makes_one(tmp_path):
    command = [sys.executable, BENCH / "compare.py", "--against", tmp_path / "nothing.whl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2, result
    assert "packaging/wheel_of.sh" in result.stderr


def test_the_longest_hold_of_the_core_is_neither_the_machines_nor_an_older_clients():
    def figure(operation, cpu_us):
        return {"operation": operation, "cpu_us": cpu_us}

    told = [
        figure("put_end", 900.0),
        figure("pin, 512 keys", 1_100.0),
        figure("put_start, 8,192 keys of an older client", 4_000.0),
        figure("(the machine: the same walk through memory)", 9_000.0),
    ]
    assert scale_cells.cells(told) == {
        "longest hold of the core": 1_100.0,
        "operations that hold it longer": 1,
    }
    source = (BENCH.parent / "crates" / "mooncake-scale" / "src" / "control.rs").read_text()
    assert f'"{scale_cells.MACHINE}' in source, "the control has another name by now"


def test_the_phases_of_a_pools_life_are_those_that_the_program_tells():
    names = (
        "filling, the first tenth",
        "filling",
        "a tenth anew",
        "a restart behind a snapshot",
        "a restart without one",
    )
    told = [
        {
            "phase": name,
            "rss_mb": 100.0 + at,
            "peak_mb": 200.0 - at,
            "thousands_a_second": 50.0 * at + 50,
            "seconds": at,
        }
        for at, name in enumerate(names)
    ]
    assert scale_cells.memory_cells(told) == {
        "memory of core and log, most": 200.0,
        "rate of puts in the core at the last tenth": 200.0,
        "log read back, a snapshot": 3,
        "log read back, without a snapshot": 4,
        "memory behind a log that was read back": 103.0,
    }
    source = (BENCH.parent / "crates" / "mooncake-scale" / "src" / "memory.rs").read_text()
    for name in names:
        assert f'"{name}"' in source, name
    assert set(scale_cells.memory_cells(told)) < set(compare.expectations())


def test_what_objects_on_tiers_cost_is_told_by_where_they_lie():
    told = {
        places: {
            "filling": {"bytes_an_object": 100.0 + at},
            "a restart behind a snapshot": {"seconds": 2.0 + at},
        }
        for at, places in enumerate(("memory", "both", "tier"))
    }
    assert scale_cells.tier_cells(told) == {
        "object in memory, short key": 100.0,
        "object in memory and on a tier, short key": 101.0,
        "object on a tier, short key": 102.0,
        "log of a tier read back, of one of memory": 200.0,
    }
    source = (BENCH.parent / "crates" / "mooncake-scale" / "src" / "tiers.rs").read_text()
    assert '"filling"' in source
    assert set(scale_cells.tier_cells(told)) < set(compare.expectations())


def test_a_machine_that_changes_its_speed_in_the_middle_of_a_run_does_not_change_a_ratio():
    slow_and_fast = [10.0, 10.0, 10.0, 20.0, 20.0]
    found = compare.Figures()
    for value in slow_and_fast:
        found.add("before", "put 1 MiB", value)
        found.add("ours", "put 1 MiB", value * 1.02)
    assert judged(found)["put 1 MiB"]["ratio"] == 1.02
    # One that failed in the middle has no neighbours to be compared with.
    found.add("before", "put 1 MiB", 20.0)
    assert judged(found)["put 1 MiB"]["ratio"] == 10.2 / 15


def test_a_cell_that_is_cut_into_slices_has_a_figure_and_a_turn_for_each_and_no_key_twice():
    asked, said = [], []

    class Client:
        def ask(self, do, **how):
            asked.append(how)
            return {"failed": 0, "wrong": 0, "count": how["most"], "moved": 80, "seconds": 1}

    session = Session(None, 0.5, lambda cell, value: said.append(cell), 0, slices=8)
    turns = list(session._samples(Client(), "put", "put", session._rate("put 1 MiB"), most=64))
    assert (len(turns), len(said)) == (8, 8)
    assert [(how["first"], how["most"], how["seconds"]) for how in asked] == [(at, 8, 0.0625) for at in range(0, 64, 8)]
