"""Joint allocation: which of a pod's device types are to come from under the same PCIe switch (DEV-10).

Called by `claims.dialects.parse` once the asks are known. The annotation is Koordinator's:
`scheduling.koordinator.sh/device-joint-allocate: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}`; without `requiredScope` it is done
wherever possible. Kept true: it is read as there (`pkg/scheduler/plugins/deviceshare/utils.go` of koordinator-sh/koordinator): types that the pod
does not ask for are dropped, and all of it where fewer than two are left. A scope other than the one that there is would mean nothing there; here
it is refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, Joint
from kube.keys import JOINT_ALLOCATE
from kube.objects import Pod

SAME_PCIE: Final = "SamePCIe"
_FIELD: Final = f"metadata.annotations[{JOINT_ALLOCATE}]"
_LONGEST: Final = 4_096
_EXAMPLE: Final = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'


class _Stated(msgspec.Struct):
    """The fields by their names in lower case: Go's decoder takes them in any."""

    devicetypes: list[str] | None = None
    requiredscope: str | None = None


def joint_of(pod: Pod, asks: tuple[DeviceAsk, ...]) -> Joint | None:
    """What the annotation says of these asks, None where it says nothing. Raises `Refused` with the rule that is broken."""
    text = pod.annotations.get(JOINT_ALLOCATE)
    if text is None:
        return None
    try:
        if len(text) > _LONGEST:
            raise msgspec.ValidationError("too long")
        fields = msgspec.json.decode(text, type=dict[str, Any] | None) or {}
        stated = msgspec.convert({name.lower(): value for name, value in fields.items()}, _Stated)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(
            "joint-json", f"annotation {JOINT_ALLOCATE} must be JSON such as {_EXAMPLE}", field=_FIELD
        ) from error
    if stated.requiredscope not in (None, "", SAME_PCIE):
        raise Refused("joint-scope", f"requiredScope of {JOINT_ALLOCATE} is {SAME_PCIE}, or left out", field=_FIELD)
    asked = {ask.type for ask in asks}
    types = tuple(kind for kind in dict.fromkeys(stated.devicetypes or ()) if kind in asked)
    return Joint(types=types, required=stated.requiredscope == SAME_PCIE) if len(types) > 1 else None
