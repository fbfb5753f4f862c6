#!/bin/bash
# wheel.sh VENV: the wheel in dist/, extension module and native binary in one. PROFILE and TARGET as in the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
profile=${PROFILE:-release} target=${TARGET:-target}
scripts=build/wheel.data/scripts

cargo build --locked --profile "$profile" -p mooncake-cli

rm -rf build/wheel.data dist
mkdir -p "$scripts" dist
install -m 755 "$target/$profile/mooncake" "$scripts/mooncake"
strip "$scripts/mooncake"
install -m 755 packaging/shims/* "$scripts/"
"$venv/bin/maturin" build --locked --quiet --profile "$profile" --out dist
