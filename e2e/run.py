"""Real engines use the pool and the transfer engine.

    python e2e/run.py [--only NAME ...] [--wheel dist/mooncake_rs-*.whl] [--folder target/e2e]

Installs the CPU build of vLLM, LMCache and our wheel into an environment of
its own (about 3 GB of downloads, once), makes a tiny random model, and runs
each scenario of e2e/scenarios: a line PASS or FAIL for each thing that is to
be so, and how long the scenario took. Skips, with the reason and exit
status 0, where an engine cannot be had.
"""

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

import environment
from rig import Rig

from pool import PoolError

ROOT = Path(__file__).resolve().parent.parent

SCENARIOS = sorted(file.stem for file in (ROOT / "e2e" / "scenarios").glob("[a-z]*.py"))


def newest_wheel():
    wheels = sorted((ROOT / "dist").glob("mooncake_rs-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("no wheel in dist/: make wheel")
    return wheels[-1]


def run(name, rig):
    """Runs one scenario and prints what it found; whether all of it was as it should be."""
    print(f"-- {name}", flush=True)
    begin, good = time.monotonic(), True
    try:
        for what, passed in importlib.import_module(f"scenarios.{name}").run(rig):
            print(("PASS " if passed else "FAIL ") + what, flush=True)
            good &= bool(passed)
    except environment.Unavailable as reason:
        print(f"SKIPPED {reason}")
    except PoolError as error:
        print(f"FAIL {error}")
        good = False
    except Exception:  # The other scenarios are run all the same.
        print(f"FAIL {traceback.format_exc()}")
        good = False
    print(f"   {name}: {time.monotonic() - begin:.0f} s", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="NAME", choices=SCENARIOS, nargs="+", default=SCENARIOS, help=", ".join(SCENARIOS)
    )
    parser.add_argument("--wheel", help="our wheel; the newest of dist/ when left out")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "e2e")
    options = parser.parse_args()
    try:
        python = environment.prepare(options.folder / "venv", options.wheel or newest_wheel())
    except environment.Unavailable as reason:
        print(f"SKIPPED: {reason}")
        return 0
    rig = Rig(python, options.folder)
    results = [run(name, rig) for name in options.only]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
