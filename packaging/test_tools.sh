#!/bin/bash
# test_tools.sh: a browser for the tests that look at pages. Without one they skip, and say so; with MOONCAKE_NEEDS_TOOLS=1
# that is a failure.
set -euo pipefail

for browser in chromium-headless-shell chromium chromium-browser google-chrome chrome-headless-shell; do
  ! command -v "$browser" >/dev/null || exit 0
done
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo -n"
install="$sudo apt-get install -y -q --no-install-recommends chromium-headless-shell"
if command -v apt-get >/dev/null; then
  $install >/dev/null 2>&1 || { $sudo apt-get update -q >/dev/null 2>&1 && $install >/dev/null 2>&1; } || true
fi
command -v chromium-headless-shell >/dev/null || {
  echo "no browser: tests of pages skip" >&2
  [ "${MOONCAKE_NEEDS_TOOLS:-0}" != 1 ]
}
