"""Joint allocation: device types of a pod that are taken from under the same PCIe switch (DEV-10).

The annotation is Koordinator's: `scheduling.koordinator.sh/device-joint-allocate: {"deviceTypes": ["gpu", "rdma"],
"requiredScope": "SamePCIe"}`; without `requiredScope` it is a preference. Invariants: as in Koordinator
(`pkg/scheduler/plugins/deviceshare/utils.go` of koordinator-sh/koordinator), types that the pod does not request are
dropped, and the annotation is ignored if fewer than two are left. Unknown scopes, which Koordinator ignores, are
refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from claims.dialects.refused import Refused, annotation_field, refused_annotation
from claims.dialects.request import DeviceAsk, Joint
from kube.keys import JOINT_ALLOCATE
from kube.objects import Pod

SAME_PCIE: Final = "SamePCIe"
_LONGEST: Final = 4_096
_EXAMPLE: Final = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'


class _Stated(msgspec.Struct):
    """The fields in lower case, since Go's decoder ignores case."""

    devicetypes: list[str] | None = None
    requiredscope: str | None = None


def joint_of(pod: Pod, asks: tuple[DeviceAsk, ...]) -> Joint | None:
    """The annotation, applied to these asks; None if it has no effect. Raises `Refused`."""
    text = pod.annotations.get(JOINT_ALLOCATE)
    if text is None:
        return None
    try:
        if len(text) > _LONGEST:
            raise msgspec.ValidationError("too long")
        fields = msgspec.json.decode(text, type=dict[str, Any] | None) or {}
        stated = msgspec.convert({name.lower(): value for name, value in fields.items()}, _Stated)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refused_annotation("joint-json", JOINT_ALLOCATE, f"must be JSON such as {_EXAMPLE}") from error
    if stated.requiredscope not in (None, "", SAME_PCIE):
        raise Refused(
            "joint-scope",
            f"requiredScope of {JOINT_ALLOCATE} is {SAME_PCIE}, or left out",
            field=annotation_field(JOINT_ALLOCATE),
        )
    requested = {ask.type for ask in asks}
    types = tuple(kind for kind in dict.fromkeys(stated.devicetypes or ()) if kind in requested)
    return Joint(types=types, required=stated.requiredscope == SAME_PCIE) if len(types) > 1 else None
