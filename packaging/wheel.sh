#!/bin/bash
# wheel.sh VENV: the wheel in OUT, extension module, native binary and C library in one. PROFILE, TARGET, BUILD and OUT as in
# the Makefile. Zig links all of them against an old C library, so that the wheel runs on hosts that are older than this one,
# and for other architectures. PROFILE=dev takes what the Rust tests have built, for this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
profile=${PROFILE:-release} target=${TARGET:-$host} build=${BUILD:-target} out=${OUT:-dist}
[[ $target == *-* ]] || target=$target-unknown-linux-gnu
[[ $target == *-linux-gnu ]] || { echo "TARGET=$target: wheels are for triples that end in -linux-gnu" >&2; exit 2; }
scripts=build/wheel.data/scripts

source packaging/zig.sh "$venv" "$target"
# The linker strips, whose architecture is the target's.
built=$build/$target/$profile for_target=(--target "$target") links=(-C link-arg=-s)
if [ "$profile" = dev ]; then
  [ "$target" = "$host" ] || { echo "PROFILE=dev is for this machine ($host), and not for $target" >&2; exit 2; }
  # Cargo would build again all that is linked by another linker: it hears of this one for the last step alone.
  built=$build/debug for_target=() links+=(-C "linker=$zig_linker")
  unset "$linker_variable"
fi
# As a library for C alone: as a Rust crate, too, it would need all that is below it built another way.
cargo rustc --locked --profile "$profile" -p mooncake-transfer-engine-c --lib --crate-type cdylib "${for_target[@]}" -- \
  "${links[@]}"
cargo rustc --locked --profile "$profile" -p mooncake-cli --bin mooncake "${for_target[@]}" -- "${links[@]}"

# One wheel at a time: maturin takes what lies in this folder.
mkdir -p build "$out"
exec 9>build/wheel.lock
flock 9
rm -rf build/wheel.data "$out"/{*.whl,.built}
mkdir -p "$scripts"
install -m 755 "$built/mooncake" "$scripts/mooncake"
install -m 755 packaging/shims/* "$scripts/"
STRIP=true packaging/c_library.sh "$built/libtransfer_engine.so" build/wheel.data/data
maturin build --locked --quiet --profile "$profile" --out "$out" "${for_target[@]}" --compatibility manylinux_2_28 -- \
  "${links[@]}"
