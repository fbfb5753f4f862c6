#!/bin/sh
# Builds the fake provider in a temporary folder, holds its structures against the real headers, and runs self_test.c
# over it; then perftest's programs, where they are installed. Needs libibverbs-dev; without it only the build is done.
#
# self_test.sh [SEED]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=gnu17 -O1 -Wall -Wextra -Werror ${SELF_TEST_FLAGS:-}"
cd "$here"
cc $flags -shared -fPIC -pthread -Wl,-soname,libibverbs.so.1 -Wl,--version-script,libibverbs.map library.c \
    -o "$build/libibverbs.so.1"
cc $flags fabric.c objects.c queue_pairs.c network.c control.c sysfs.c -o "$build/fabric"
if ! echo '#include <infiniband/verbs.h>' | cc -E - > /dev/null 2>&1; then
    echo "built; not tested: libibverbs-dev is not installed"
    exit 0
fi
cc $flags -fsyntax-only check_abi.c
cc $flags -pthread self_test.c -o "$build/self_test" "$build/libibverbs.so.1"
mkdir "$build/world"
mkfifo "$build/input"
"$build/fabric" "$build/world" --nics 3 --numa 0,-,1 ${1:+--seed "$1"} < "$build/input" > "$build/output" &
fabric=$!
exec 3> "$build/input"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    grep -q ready "$build/output" && break
    sleep 0.2
done
cat "$build/output"
LD_LIBRARY_PATH="$build" "$build/self_test" "$build/world"
if command -v ib_write_bw > /dev/null && command -v ib_read_bw > /dev/null; then
    ./perftest.sh "$build" "$build/world"
else
    echo "perftest is not installed"
fi
exec 3>&-
wait "$fabric" && echo "the fabric ended with its input"
