"""What the comparison measures is checked before it measures anything."""

import inspect
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))
import compare  # noqa: E402
from cells import Session  # noqa: E402


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


def test_the_cells_that_can_be_asked_for_are_those_that_a_session_has():
    methods = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    assert set(compare.PARTS) == methods
    assert set(compare.MEASURED) <= methods
    assert compare.parts(" data , tcp") == ["data", "tcp"]
