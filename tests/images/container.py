"""Starts a program of an image as a container runtime would: on the image's own files, which it cannot change, as the
image's user, with the image's environment; `/tmp` and the data folder are empty and its own.

`words` is put before the program's command line; the process stays the program's own, so signals reach it. Not
imitated: cgroups, seccomp, and namespaces but the one of mounts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.images.tools import Image

DATA: Final = "/var/lib/gpuplane"
OWN: Final = ("/tmp", DATA)
"""Folders that the chart mounts an emptyDir at."""


def words(
    image: Image,
    *,
    shown: Sequence[Path] = (),
    mounted: Mapping[str, Path] | None = None,
    data: Path | None = None,
    user: str = "",
) -> list[str]:
    """The command that another one is appended to. `shown`: folders of the host at their own path; `mounted`: files and
    folders of the host by their path in the container; both cannot be written to. `data`: a folder that is the data
    folder, and outlives the process; `user`: uid:gid, other than the image's.
    """
    root = str(image.root)
    given = {**{str(path): path for path in shown}, **(mounted or {})}
    there = {_real(image.root, path): source for path, source in given.items()}
    steps = [
        f"mount --bind {root} {root}",
        *(f"mkdir -p {root}{path} && mount --rbind {path} {root}{path}" for path in ("/proc", "/dev", "/sys")),
        *(f"mkdir -p {root}{path} && mount -t tmpfs -o size=256m,mode=1777 tmpfs {root}{path}" for path in OWN),
        *([f"mount --bind {data} {root}{DATA}"] if data else []),
        *(f"{_made(root + path, source)} && mount --bind {source} {root}{path}" for path, source in there.items()),
        *(f"mount -o remount,bind,ro {root}{path}" for path in there),
        f"mount -o remount,bind,ro {root}",
    ]
    owner, _, group = (user or str(image.config.get("User") or "0:0")).partition(":")
    folder = image.config.get("WorkingDir") or "/"
    # not by chroot(1), which needs a shell of the image to change into the folder
    steps.append(f'exec unshare --root={root} --wd={folder} --setgid={group or 0} --setuid={owner} "$@"')
    return ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(steps), "sh"]


def _real(root: Path, path: str) -> str:
    """The path past the image's link from /var/run, which would lead out of its files to those of the host."""
    return path.removeprefix("/var") if path.startswith("/var/run/") and (root / "var/run").is_symlink() else path


def _made(target: str, source: Path) -> str:
    """Shell words that make what `source` is mounted at."""
    return f"mkdir -p {target}" if source.is_dir() else f"mkdir -p {Path(target).parent} && touch {target}"


def environment(image: Image, own: Mapping[str, str]) -> dict[str, str]:
    """The image's, and what the pod adds to it."""
    return {**image.environment, **own}
