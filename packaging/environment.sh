#!/bin/bash
# environment.sh PYTHON VENV REQUIREMENTS: a virtual environment with the tools, made once and mended when broken.
set -euo pipefail
python=$1 venv=$2 requirements=$3

apt_install() {
  command -v apt-get >/dev/null || { echo "please install: $*" >&2; exit 1; }
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get install -y -q "$@" >/dev/null 2>&1 || { $sudo apt-get update -q >/dev/null && $sudo apt-get install -y -q "$@" >/dev/null; }
}

command -v cc >/dev/null || apt_install build-essential
# For the tests that meet the published engine; without it they skip and say so.
ldconfig -p | grep -q 'libibverbs\.so\.1' || (apt_install libibverbs1) || true
command -v "$python" >/dev/null || apt_install python3 python3-venv
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $python is $("$python" -V)" >&2; exit 1; }
rustup component list --installed 2>/dev/null | grep -q rustfmt || rustup component add rustfmt clippy 2>/dev/null || true

# Scripts of a virtual environment, pip's for one, name its interpreter by the path at which it was made.
if [ -e "$venv/pyvenv.cfg" ]; then
  made_at=$(sed -n 's/^command = .* -m venv \(--[^ ]* \)*//p' "$venv/pyvenv.cfg") lies_at=$(realpath -ms "$venv")
  if [ -n "$made_at" ] && [ "$made_at" != "$lies_at" ]; then
    echo "$venv was moved here from $made_at: mending its scripts" >&2
    made_at_pattern=$(sed 's/[][\\.*^$|]/\\&/g' <<<"$made_at") lies_at_text=$(sed 's/[\\&|]/\\&/g' <<<"$lies_at")
    grep -rIlF --exclude-dir=__pycache__ "$made_at" "$venv/bin" "$venv/pyvenv.cfg" | while read -r script; do
      sed -i "s|$made_at_pattern|$lies_at_text|g" "$script"
    done
  fi
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    # Debian splits ensurepip off into a package named after the version.
    rm -rf "$venv"
    apt_install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    "$python" -m venv "$venv"
  fi
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"

# What the demo, the benchmarks, the engines' scenarios and the tests share. The path is a relative one, so that it
# moves with the checkout.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
realpath -m --relative-to="$packages" "$(dirname "$0")/../testing" >"$packages/mooncake-testing.pth"
