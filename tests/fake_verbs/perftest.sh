#!/bin/sh
# Runs perftest's ib_write_bw and ib_read_bw over the fake provider: programs that were built against the real library,
# and compare no bytes. They load libraries that want more of libibverbs than the fake has, so what is missing is
# generated here: functions that do nothing and return 0.
#
# perftest.sh BUILD WORLD: BUILD has libibverbs.so.1, WORLD a running fabric.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 world=$2
mkdir -p "$build/perftest"
cd "$build/perftest"
objdump -T "$build/libibverbs.so.1" | tr -d '()' | awk '$4 == ".text" { print $7, $6 }' > have
write_bw=$(command -v ib_write_bw)
libraries=$(ldd "$write_bw" | awk '/libmlx5|libefa|librdmacm/ { print $3 }')
for file in $write_bw $libraries; do
    nm -D --undefined-only "$file"
done | sed -n 's/.* U \([^@]*\)@\(IBVERBS_.*\)/\1 \2/p' | sort -u > want
awk 'NR == FNR { have[$0]; next } !($0 in have)' have want > missing
awk '{ print "long " $1 "(void);\nlong " $1 "(void) { return 0; }" }' missing > missing.c
sort -u have missing | awk '{ names[$2] = names[$2] " " $1 ";" }
    END { for (version in names) {
        hidden = version == "IBVERBS_1.0" ? " local: *;" : ""
        print version " { global:" names[version] hidden " };" } }' > all.map
cc -std=gnu17 -O1 -shared -fPIC -pthread -Wl,-soname,libibverbs.so.1 -Wl,--version-script,all.map -I"$here" \
    "$here/library.c" missing.c -o libibverbs.so.1
export FAKE_VERBS="$world" LD_LIBRARY_PATH="$build/perftest"
port=18515
for program in ib_write_bw ib_read_bw; do
    for size in 65536 1048576; do
        port=$((port + 1))
        set -- -d fake0 -x 3 -s "$size" -n 500 -q 2 -p "$port" --use_old_post_send -F
        timeout 60 "$program" "$@" > server.log 2>&1 &
        server=$!
        sleep 0.5
        if timeout 60 "$program" "$@" -d fake1 127.0.0.1 > client.log 2>&1 && wait "$server"; then
            rate=$(awk -v size="$size" '$1 == size { print $4 }' client.log)
            echo "perftest: $program $size bytes, $rate MB/s"
        else
            echo "perftest: $program $size fails"
            tail -n 5 server.log client.log
            exit 1
        fi
    done
done
