#!/bin/bash
# bench/run.sh [options of compare.py]: our wheel beside the published one and the machine's limits, in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import numpy' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check 'numpy>=1.26'
exec "$python" bench/compare.py "$@"
