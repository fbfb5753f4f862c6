#!/bin/bash
# packaging/machines_are_pure.sh: fails where a file of a machine/ folder names what a machine has not: sockets, files, threads,
# clocks, locks, the kernel. What runs there runs in virtual time too, where only the driver knows of the world.
set -euo pipefail
cd "$(dirname "$0")/.."
names='std::(net|thread|fs|os|process|sync::mpsc)\b|\b(Instant|SystemTime|Mutex|RwLock|Condvar|OnceLock|thread_local)\b'
names+='|\b(parking_lot|libc|rustix|socket2|tokio|mio|nix|crossbeam|rand|getrandom)\b'
mapfile -t files < <(find crates/*/src/machine crates/*/src/machine.rs -name '*.rs' 2>/dev/null | sort)
[ ${#files[@]} -gt 0 ] || { echo "no machines found in $PWD" >&2; exit 2; }
if grep -nE "$names" "${files[@]}"; then
    echo "a state machine has no I/O, clock, lock or thread: what is named above belongs into its driver" >&2
    exit 1
fi
