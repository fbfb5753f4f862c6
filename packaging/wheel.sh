#!/bin/bash
# wheel.sh VENV: the wheel in dist/, extension module, native binary and C library in one. PROFILE, TARGET and OUT as in the Makefile.
# Zig links all of them against an old C library, so that the wheel runs on hosts that are older than this one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
profile=${PROFILE:-release} target=${TARGET:-target} out=${OUT:-dist}
host=$(rustc -vV | sed -n 's/^host: //p')
scripts=build/wheel.data/scripts

export PATH="$venv/bin:$PATH"
linker=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_LINKER
export "$linker=$PWD/packaging/zig-linker"
cargo build --locked --profile "$profile" -p mooncake-cli --target "$host"
# As a library for C alone: as a Rust crate, too, it would need all that is below it built another way.
cargo rustc --locked --profile "$profile" -p mooncake-transfer-engine-c --lib --crate-type cdylib --target "$host"

rm -rf build/wheel.data "$out"
mkdir -p "$scripts" "$out"
install -m 755 "$target/$host/$profile/mooncake" "$scripts/mooncake"
strip "$scripts/mooncake"
install -m 755 packaging/shims/* "$scripts/"
packaging/c_library.sh "$target/$host/$profile/libtransfer_engine.so" build/wheel.data/data
maturin build --locked --quiet --profile "$profile" --out "$out" --target "$host" --compatibility manylinux_2_28
