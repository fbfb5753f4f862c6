#!/bin/bash
# wheel_of.sh REVISION: the wheel of another revision of this repository, for comparisons and for tests of mixed
# versions. Prints its path. Built from the clone's own history as that revision builds itself, once: then it is kept in
# build/wheels. PYTHON as in the Makefile.
set -euo pipefail
own=$(realpath "$0")
cd "$(dirname "$own")/.."
[ $# = 1 ] || { sed -n '2,4s/^# //p' "$own" >&2; exit 2; }
revision=$1

if ! commit=$(git rev-parse --verify --quiet "$revision^{commit}"); then
  echo "wheel_of.sh: this clone has no commit $revision" >&2
  if [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = true ]; then
    echo "  it is a shallow one: \`git fetch --unshallow\` brings the history" >&2
  else
    echo "  \`git fetch\` may bring it; a copy without .git has no history" >&2
  fi
  exit 1
fi
short=${commit:0:7}
folder=$PWD/build/wheels/$short
found() { find "$folder" -maxdepth 1 -name '*.whl' -print -quit 2>/dev/null; }
if [ -n "$(found)" ]; then found; exit; fi

# Sources and what cargo makes of them stay until the wheel is there: who was interrupted goes on from there.
source=build/wheel-of-$short target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/wheel-of-$short
if [ ! -e "$source/.whole" ]; then
  rm -rf "$source"
  mkdir -p "$source"
  git archive "$commit" | tar -x -C "$source"
  touch "$source/.whole"
fi
echo "wheel_of.sh: building the wheel of $short, some minutes" >&2
# Nothing that was said to this `make` is meant for that one.
env -u MAKEFLAGS -u MAKEOVERRIDES -u MAKELEVEL -u PROFILE -u TARGET -u OUT -u VENV CARGO_TARGET_DIR="$target" \
  make -C "$source" wheel ${PYTHON:+PYTHON="$PYTHON"} >&2
mkdir -p "$folder"
wheel=$(basename "$source"/dist/*.whl)
cp "$source/dist/$wheel" "$folder/.part"
mv "$folder/.part" "$folder/$wheel"
rm -rf "$source" "$target"
found
