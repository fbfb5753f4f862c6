"""Kubernetes objects of deploy/: as kubectl and Helm make them, checked against the schemas of Kubernetes, and run.

What `packaging/deploy_tools.sh` brings is looked for in the virtual environment, then on the path; a test whose program
is not there is skipped, or fails with MOONCAKE_NEEDS_TOOLS=1.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pool import Program, binary

DEPLOY = Path(__file__).parents[2] / "deploy"
PLAIN = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "mooncake"
# The oldest that the chart takes, and a later one. Of what the operator of Prometheus adds there are no schemas here.
VERSIONS = ("1.29.0", "1.35.0")
ADDED = "monitoring.coreos.com/v1"

Objects = dict[tuple[str, str], dict]


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    if found is None:
        leave = pytest.fail if os.environ.get("MOONCAKE_NEEDS_TOOLS") == "1" else pytest.skip
        leave(f"no {name} here: packaging/deploy_tools.sh brings it")
    return found


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess:
    # Nothing of the user's own: no cluster, no plugins, no caches.
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True, timeout=60, env=env)


def objects(text: str) -> Objects:
    """By kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    named = {(document["kind"], document["metadata"]["name"]): document for document in found}
    assert len(named) == len(found)
    return named


def kustomized(tmp_path: Path, *components: str) -> Objects:
    """The plain manifests with these components, as an overlay names them."""
    overlay = tmp_path / ("overlay-" + "-".join(components))
    overlay.mkdir(exist_ok=True)

    def seen_from_there(path: Path) -> str:
        return os.path.relpath(path.resolve(), overlay.resolve())

    listed = {
        "resources": [seen_from_there(PLAIN)],
        "components": [seen_from_there(PLAIN / "components" / name) for name in components],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(listed))
    done = run("kubectl", "kustomize", overlay)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def helm(values: dict | None = None, release: str = "mooncake", chart: Path = CHART) -> subprocess.CompletedProcess:
    given = yaml.safe_dump(values or {})
    command = [tool("helm"), "template", release, str(chart), "--namespace=kv", f"--kube-version={VERSIONS[0]}", "-f-"]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)


def rendered(values: dict | None = None, **options) -> Objects:
    """What the chart makes of these values."""
    done = helm(values, **options)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def is_valid(found: Objects) -> None:
    """Each is what Kubernetes takes, without a field that it does not know."""
    import kubernetes_validate

    for name, document in found.items():
        if document["apiVersion"] == ADDED:
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                pytest.fail(f"{name}, Kubernetes {version}: {error.path}: {error.message}")


def pods(found: Objects) -> Iterator[tuple[str, dict]]:
    """Specifications of pods, by the name of what makes them."""
    for (kind, name), document in found.items():
        if kind in ("StatefulSet", "DaemonSet"):
            yield name, document["spec"]["template"]["spec"]


def containers(pod: dict) -> list[dict]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def mebibytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


# A root of its own with this machine's programs and nothing to write to but what is mounted: stands for an image.
ROOT = """
set -e
root=$1; shift
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$root"
share() { mkdir -p "$root$2"; mount --bind "$1" "$root$2"; }
for path in /bin /lib /lib32 /lib64 /sbin /usr; do
  if [ -h "$path" ]; then cp -P "$path" "$root$path"; elif [ -d "$path" ]; then share "$path" "$path"; fi
done
for path in $READ; do share "$path" "$path"; done
share /dev /dev
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mkdir -p "$root/proc" "$root/etc" "$root/tmp"
mount -t proc proc "$root/proc"
printf '%s\\n' "$HOSTS" > "$root/etc/hosts"
for pair in $VOLUMES; do share "${pair%%:*}" "${pair#*:}"; done
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""
APART = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]


def end(program: Program) -> None:
    """SIGKILL to the first process of its pid namespace; over with the last one of it, as a runtime waits for it."""
    if not signal_children(program, signal.SIGKILL):
        # It has not begun its child, or ends with it at this moment.
        program.kill()
        return
    try:
        program.process.wait(10)
    except subprocess.TimeoutExpired:
        # By --kill-child its namespace ends with it.
        program.kill()
        raise


def signal_children(program: Program, number: int) -> list[int]:
    """Sends a signal to what a program has started, and says to whom: none, where that has ended or is yet to begin."""
    if not program.alive:
        return []
    # Until it is waited for, which only this process does, it has an entry there.
    children = [int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()]
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
    return children


class Container:
    """A container of a pod, as its specification says: its user, its command, its volumes, nothing else to write to.

    It has namespaces of its own, but for the network: that of the thread which starts it.
    """

    def __init__(self, pod: dict, name: str, tmp_path: Path, fields: dict[str, str], hosts: tuple[str, ...] = ()):
        self._pod, self._tmp_path, self._hosts = pod, tmp_path, hosts
        [self.spec] = [container for container in containers(pod) if container["name"] == name]
        self._env = {}
        for variable in self.spec.get("env", []):
            given = variable.get("value")
            self._env[variable["name"]] = (
                fields[variable["valueFrom"]["fieldRef"]["fieldPath"]] if given is None else given
            )

    def command(self) -> list[str]:
        """With $(NAME) as Kubernetes reads it."""

        def known(match: re.Match) -> str:
            return self._env[match[1]]

        return [re.sub(r"\$\((\w+)\)", known, word) for word in [*self.spec["command"], *self.spec.get("args", [])]]

    def wrapped(self, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """Any command in the container, and the variables of its making."""
        security, user = self._pod["securityContext"], self._pod["securityContext"]["runAsUser"]
        shut_in = self.spec["securityContext"]
        assert shut_in["readOnlyRootFilesystem"]
        assert shut_in["capabilities"] == {"drop": ["ALL"]}
        root = self._tmp_path / f"root-{self.spec['name']}"
        root.mkdir(exist_ok=True)
        volumes = []
        for mount in self.spec.get("volumeMounts", []):
            volume = self._tmp_path / f"volume-{mount['name']}"
            volume.mkdir(mode=0o700, exist_ok=True)
            os.chown(volume, user, security["fsGroup"])
            volumes.append(f"{volume}:{mount['mountPath']}")
        scripts = sysconfig.get_path("scripts")
        become = [f"--reuid={user}", f"--regid={security['runAsGroup']}", "--clear-groups", "--bounding-set=-all"]
        become += [] if shut_in["allowPrivilegeEscalation"] else ["--no-new-privs"]
        # Another user forgets whose end it ends with.
        become += ["--pdeathsig=KILL"]
        tested = str(Path(binary()).parent)
        env = [f"PATH={tested}:{scripts}:/usr/bin:/bin", *(f"{name}={value}" for name, value in self._env.items())]
        # The interpreter and the environment with the wheel; the repository's own modules are in its path.
        readable = dict.fromkeys([sys.base_prefix, str(Path(scripts).parent), tested])
        made = {
            "READ": " ".join(readable),
            "VOLUMES": " ".join(volumes),
            "HOSTS": "\n".join(["127.0.0.1 localhost", *(f"127.0.0.1 {host}" for host in self._hosts)]),
        }
        inside = ["setpriv", *become, "env", "-i", *env, *command]
        return [*APART, "sh", "-c", ROOT, "sh", str(root), *inside], {**os.environ, **made}

    def program(self, ready: str) -> Program:
        command, env = self.wrapped(self.command())
        return Program(self.spec["name"], command, self._tmp_path / f"{self.spec['name']}.out", ready, env)

    def run(self, *command: str) -> subprocess.CompletedProcess:
        wrapped, env = self.wrapped(list(command))
        return subprocess.run(wrapped, env=env, capture_output=True, text=True, timeout=60)

    def probes(self) -> dict[str, tuple[int, str]]:
        """Port and path of each probe that asks by HTTP."""
        ports = {port["name"]: port["containerPort"] for port in self.spec["ports"]}
        asked = {name: self.spec[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        return {name: (ports[get["port"]], get["path"]) for name, get in asked.items()}
