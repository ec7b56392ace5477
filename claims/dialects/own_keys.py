"""The annotation from which one container of a pod sees its devices, where containers have devices of their own.

Read by whoever writes the Binding's annotations, and by admission, which refers to them.
"""

from __future__ import annotations

from typing import Final

from kube.keys import VISIBLE_DEVICES

CONTAINER_KEYS: Final = f"{VISIBLE_DEVICES}."
_LONGEST: Final = 63
"""Of an annotation's name after its prefix."""


def container_key(container: str) -> str:
    """The container's own annotation; that of the whole pod where the container's name is too long to be part of one."""
    key = CONTAINER_KEYS + container
    return key if container and len(key.partition("/")[2]) <= _LONGEST else VISIBLE_DEVICES
