#!/bin/bash
# bench/run.sh [options of compare.py]: our wheel beside the published one and the machine's limits, in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import numpy, aiohttp' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check 'numpy>=1.26' 'aiohttp>=3.10'
exec "$python" bench/compare.py "$@"
