#!/bin/bash
# emulator.sh: what runs programs for aarch64 on another machine, from Debian's packages, once. Prints the command;
# with status 1 it says why there is none.
set -euo pipefail
sysroot=/usr/aarch64-linux-gnu

no() { echo "no emulated aarch64 processor: $*" >&2; exit 1; }

[ "$(uname -m)" != aarch64 ] || no "this machine has a real one, where the ordinary tests are those of its wheel"
emulator() { type -P qemu-aarch64 || type -P qemu-aarch64-static; }
missing=()
emulator >/dev/null || missing+=(qemu-user)
[ -e $sysroot/lib/ld-linux-aarch64.so.1 ] || missing+=(libc6-arm64-cross)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || no "install ${missing[*]}"
  sudo=
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  # Without what Debian recommends: handlers that have the kernel run every foreign program so.
  install="$sudo apt-get install -y -q --no-install-recommends ${missing[*]}"
  $install >/dev/null 2>&1 || { $sudo apt-get update -q >/dev/null 2>&1 && $install >/dev/null 2>&1; } ||
    no "${missing[*]} cannot be installed: apt-get install ${missing[*]}"
fi
program=$(emulator) || no "qemu-user is installed, and has no qemu-aarch64"
echo "$program -L $sysroot"
