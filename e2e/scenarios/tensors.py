"""The tests of tensors and of the tutorial, with the torch that the engines bring along: `make test` has none."""

import subprocess
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "python"
LIMIT_S = 600


def run(rig):
    """What is to be so, and whether it is."""
    python = str(rig.python)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(TESTS / "requirements.txt")], check=True, timeout=LIMIT_S)
    report = Path(python).parent.parent / "tensor-tests.xml"
    tests = [str(path) for path in (*sorted(TESTS.glob("test_tensor*.py")), TESTS / "test_tutorial.py")]
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    code = subprocess.run(pytest, cwd=ROOT, check=False, timeout=LIMIT_S).returncode
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    ran, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    yield f"{ran} tests of the tensor calls and the tutorial pass", code == 0 and ran > 0
    yield f"none of them is skipped ({skipped})", skipped == 0
