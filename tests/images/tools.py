"""buildah builds the images where no container engine runs: as root, with chroot isolation, on a Debian base that
mmdebstrap makes once.

Called by `make images` (`python -m tests.images.tools`) and by the tests. Both programs are Debian's packages; the
base and the layers are kept beside the cluster's programs.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.controlplane.program import ROOT
from tests.cluster.controlplane.tools import ToolsError, one_at_a_time, run, tools_folder

PACKAGES: Final = ("buildah", "mmdebstrap")
SUITE: Final = "bookworm"
BASE: Final = "base"
WITH: Final = "python3,python3-venv,ca-certificates"
"""Debian's packages in the base."""
LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
"""What Debian's own slim images leave out as well."""
IMAGES: Final = {
    "gpuplane": "docker/Dockerfile",
    "gpuplane-agent": "docker/agent.Dockerfile",
    "gpuplane-runner": "docker/runner.Dockerfile",
}
"""Image → its file."""
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
OF_THE_MACHINE: Final = ("/etc/pip.conf", CERTIFICATES)
"""How packages are reached from here, which a build needs to know as well."""


@dataclass(frozen=True)
class Image:
    """An image that was built: its file system, and what it says of itself."""

    name: str
    root: Path
    config: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """Of its containers."""
        return dict(line.split("=", 1) for line in self.config["Env"])

    @property
    def size(self) -> int:
        """Bytes of its files, links counted once."""
        done = subprocess.run(
            ["du", "--summarize", "--bytes", "--one-file-system", str(self.root)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout.split()[0])


def why_not() -> str:
    """Why no image can be built here; empty where one can."""
    if not sys.platform.startswith("linux"):
        return f"images are built on Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "buildah with chroot isolation needs root"
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing and shutil.which("apt-get") is None:
        return f"no {' and no '.join(missing)} here, and no apt-get to install them"
    return ""


def install_missing() -> None:
    """Install Debian's packages where they are not there. ToolsError where that fails."""
    if why := why_not():
        raise ToolsError(why)
    if all(shutil.which(name) for name in PACKAGES):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], environment)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], environment)


def build(name: str) -> Image:
    """The image, built anew from the working tree where layers have changed. ToolsError where that fails."""
    install_missing()
    with one_at_a_time():
        _make_base()
        began = time.monotonic()
        there = [path for path in OF_THE_MACHINE if Path(path).exists()]
        _buildah(
            "bud",
            "--isolation=chroot",
            "--layers",
            "--pull-never",
            *(f"--volume={path}:{path}:ro" for path in there),
            f"--build-arg=BASE=localhost/{BASE}",
            *(
                [f"--build-arg=NODE_EXTRA_CA_CERTS={CERTIFICATES}"]
                if CERTIFICATES in there and name == "gpuplane"
                else []
            ),
            f"--file={ROOT / IMAGES[name]}",
            f"--tag=localhost/{name}",
            str(ROOT),
        )
        print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
        return _opened(name)


def sizes() -> dict[str, int]:
    """Bytes of each image that was built, as it was built last; builds and installs nothing."""
    if why_not() or not all(shutil.which(name) for name in PACKAGES):
        return {}
    found = {}
    for name in IMAGES:
        if _buildah("images", "--quiet", "--filter", f"reference=localhost/{name}").strip():
            image = _opened(name)
            found[name] = image.size
            forget(image)
    return found


def _opened(name: str) -> Image:
    made = _buildah("from", "--pull-never", f"--name={name}-{os.getpid()}", f"localhost/{name}").strip()
    root = Path(_buildah("mount", made).strip())
    config = json.loads(_buildah("inspect", "--type=image", f"localhost/{name}"))["OCIv1"]["config"]
    return Image(name, root, config)


def forget(image: Image) -> None:
    """Delete the container that its file system was mounted by."""
    _buildah("rm", f"{image.name}-{os.getpid()}")


def _make_base() -> None:
    """Import a Debian with Python where it is not there yet: a tarball by mmdebstrap."""
    if _buildah("images", "--quiet", "--filter", f"reference=localhost/{BASE}").strip():
        return
    tools_folder().mkdir(parents=True, exist_ok=True)
    tarball = tools_folder() / f"image-{BASE}-{SUITE}.tar"
    began = time.monotonic()
    if not tarball.exists():
        beside = tarball.with_suffix(".part.tar")
        left_out = [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
        run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={WITH}", *left_out, SUITE, str(beside)])
        beside.replace(tarball)
    made = _buildah("from", "scratch").strip()
    _buildah("add", "--quiet", made, str(tarball), "/")
    _buildah("commit", "--quiet", made, f"localhost/{BASE}")
    _buildah("rm", made)
    print(f"  {BASE}: {time.monotonic() - began:.0f} s", flush=True)


def _buildah(*words: str) -> str:
    store = tools_folder() / "images"
    options = ["--storage-driver=vfs", f"--root={store}", f"--runroot={store / 'run'}"]
    return run(["buildah", *options, *words], {**os.environ, "BUILDAH_ISOLATION": "chroot"})


def main() -> int:
    """`make images`: build what has changed, and tell the sizes."""
    try:
        for name in IMAGES:
            image = build(name)
            print(f"{name:16} {image.size / 1e6:5.0f} MB")
            forget(image)
    except ToolsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
