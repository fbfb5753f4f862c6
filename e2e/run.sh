#!/bin/bash
# e2e/run.sh [options of run.py]: the real vLLM puts KV blocks into our pool, ends, and a second one loads them.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" e2e/run.py "$@"
