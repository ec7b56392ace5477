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


def words(image: Image, *, shown: Sequence[Path] = (), written: Sequence[Path] = ()) -> list[str]:
    """The command that another one is appended to. `shown`, `written`: folders of the host that are mounted at their
    own path, the latter to be written to.
    """
    root = str(image.root)
    steps = [
        f"mount --bind {root} {root}",
        *(f"mkdir -p {root}{path} && mount --rbind {path} {root}{path}" for path in ("/proc", "/dev", "/sys")),
        *(f"mkdir -p {root}{path} && mount -t tmpfs -o size=256m,mode=1777 tmpfs {root}{path}" for path in OWN),
        *(f"mkdir -p {root}{path} && mount --bind {path} {root}{path}" for path in (*shown, *written)),
        *(f"mount -o remount,bind,ro {root}{path}" for path in shown),
        f"mount -o remount,bind,ro {root}",
    ]
    user, _, group = str(image.config.get("User") or "0:0").partition(":")
    folder = image.config.get("WorkingDir") or "/"
    # not by chroot(1), which needs a shell of the image to change into the folder
    steps.append(f'exec unshare --root={root} --wd={folder} --setgid={group or 0} --setuid={user} "$@"')
    return ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(steps), "sh"]


def environment(image: Image, own: Mapping[str, str]) -> dict[str, str]:
    """The image's, and what the pod adds to it."""
    return {**image.environment, **own}
