"""The programs a cluster is made of: found where `KUBEBUILDER_ASSETS` says, else built once from the Go module proxy.

Called by `make cluster-tools` (`python -m tests.cluster.controlplane.tools`) and by everything here that starts one. A
program that is built lies under `GPUPLANE_TOOLS_DIR` (by default in the user's cache folder), in a folder named after
its module's version, and appears there whole or not at all: it is built beside its place and moved.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent.parent / "tools"
# How often a build that has not ended says how far it is.
PROGRESS_SECONDS = 10.0


class ToolsError(Exception):
    """A program is missing and cannot be built; the text says what a person can do."""


@dataclass(frozen=True)
class Program:
    """One program: the folder of its Go module under `tools/`, the module that carries its version, and its package.

    `definitions`: files of that module, beside the code, that are kept beside the program (`crds`).
    """

    name: str
    folder: str
    module: str
    package: str
    definitions: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version that the program's go.mod asks for."""
        text = (MODULES / self.folder / "go.mod").read_text()
        found = re.search(rf"^(?:require)?\s*{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise ToolsError(f"{MODULES / self.folder / 'go.mod'} names no version of {self.module}")
        return found[1]

    @property
    def place(self) -> Path:
        """Where the built program lies: by version, and by its own source where we wrote it."""
        own = MODULES / self.folder / "main.go"
        source = f"-{hashlib.sha256(own.read_bytes()).hexdigest()[:8]}" if own.exists() else ""
        return tools_folder() / f"{self.folder}-{self.version}{source}" / self.name

    @property
    def crds(self) -> list[Path]:
        """The definitions that were kept."""
        return sorted((self.place.parent / "crds").glob("*.yaml"))


_KUBERNETES = "k8s.io/kubernetes"
PROGRAMS = {
    program.name: program
    for program in (
        Program("kube-apiserver", "kubernetes", _KUBERNETES, f"{_KUBERNETES}/cmd/kube-apiserver"),
        Program("kube-scheduler", "kubernetes", _KUBERNETES, f"{_KUBERNETES}/cmd/kube-scheduler"),
        Program("kube-controller-manager", "kubernetes", _KUBERNETES, f"{_KUBERNETES}/cmd/kube-controller-manager"),
        Program("kubectl", "kubernetes", _KUBERNETES, f"{_KUBERNETES}/cmd/kubectl"),
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        Program("helm", "helm", "helm.sh/helm/v3", "helm.sh/helm/v3/cmd/helm"),
        Program(
            "karpenter",
            "karpenter",
            "sigs.k8s.io/karpenter",
            "sigs.k8s.io/karpenter/kwok",
            definitions=("kwok/charts/crds/*.yaml", "kwok/apis/crds/*.yaml"),
        ),
        Program("oidc-provider", "oidc", "github.com/zitadel/oidc/v3", "."),
    )
}


def tools_folder() -> Path:
    """Where built programs are kept."""
    if named := os.environ.get("GPUPLANE_TOOLS_DIR"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplane" / "tools"


def found(name: str) -> Path | None:
    """The program's path, where it is there: `KUBEBUILDER_ASSETS` first, then what was built."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        given = Path(assets) / name
        if os.access(given, os.X_OK):
            return given
    place = PROGRAMS[name].place
    return place if os.access(place, os.X_OK) else None


def program(name: str) -> str:
    """The program's path. ToolsError where it is neither given nor built."""
    path = found(name)
    if path is None:
        raise ToolsError(
            f"{name} is not here: run `make cluster-tools`, or name a folder that has it in KUBEBUILDER_ASSETS"
        )
    return str(path)


def build_missing() -> list[str]:
    """Build every program that is not there yet, one after the other; the names built.

    ToolsError without a Go toolchain.
    """
    missing = [name for name in PROGRAMS if found(name) is None]
    if not missing:
        return []
    go = shutil.which("go")
    if go is None:
        raise ToolsError(
            f"{', '.join(missing)} must be built, and there is no Go here. Install Go 1.26 or newer (the package"
            " golang-go, or an archive from Go's own site), or name a folder that has the programs in"
            " KUBEBUILDER_ASSETS.",
        )
    print(f"building {', '.join(missing)} into {tools_folder()}: about ten minutes on two cores, once", flush=True)
    with one_at_a_time():
        for name in missing:
            if found(name) is None:
                _build(go, PROGRAMS[name])
    return missing


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two builders at once would only share the cores: the second waits and finds the first one's programs."""
    tools_folder().mkdir(parents=True, exist_ok=True)
    with (tools_folder() / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """The program's output. ToolsError, with the end of all that it wrote, where it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolsError(f"`{' '.join(command)}` failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def _build(go: str, wanted: Program) -> None:
    """Build one program; the output of a build that fails is shown whole."""
    folder = MODULES / wanted.folder
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    started = time.monotonic()
    # Without these modules' own stamp, clients see version v0.0.0.
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={wanted.version}"
    wanted.place.parent.mkdir(parents=True, exist_ok=True)
    beside = wanted.place.with_name(f"{wanted.name}.{os.getpid()}.part")
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(beside), wanted.package]
    lines: list[str] = []
    compiled, last = 0, started
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            compiled += "/" in line and " " not in line.strip()
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                print(f"  {wanted.name}: {compiled} packages, {last - started:.0f} s", flush=True)
    if child.returncode:
        beside.unlink(missing_ok=True)
        raise ToolsError(f"{wanted.name} was not built (`{' '.join(command)}` in {folder}):\n{''.join(lines[-30:])}")
    _keep_definitions(go, wanted, environment)
    beside.replace(wanted.place)
    print(f"  {wanted.name} {wanted.version}: {time.monotonic() - started:.0f} s", flush=True)


def _keep_definitions(go: str, wanted: Program, environment: Mapping[str, str]) -> None:
    """Copy the program's definitions out of its module."""
    if not wanted.definitions:
        return
    command = [go, "list", "-m", "-f", "{{.Dir}}", wanted.module]
    module = subprocess.run(
        command, cwd=MODULES / wanted.folder, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()
    place = wanted.place.parent / "crds"
    place.mkdir(exist_ok=True)
    for pattern in wanted.definitions:
        for path in sorted(Path(module).glob(pattern)):
            (place / path.name).write_bytes(path.read_bytes())


def main() -> int:
    """`make cluster-tools`: build what is missing, say what there is."""
    try:
        built = build_missing()
    except ToolsError as error:
        print(error, file=sys.stderr)
        return 1
    for name in PROGRAMS:
        print(f"{name:24} {found(name)}{'  (built now)' if name in built else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
