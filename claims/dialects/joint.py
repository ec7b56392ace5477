"""Joint allocation: which of a pod's device types are to come from under the same PCIe switch (DEV-10).

Called by `claims.dialects.parse` once the asks are known. The annotation is Koordinator's:
`scheduling.koordinator.sh/device-joint-allocate: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}`; without `requiredScope` it is done
wherever possible. Kept true: a type that the pod does not ask for is refused, since it would be silently ignored.
"""

from __future__ import annotations

from typing import Final

import msgspec

from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, Joint
from kube.keys import JOINT_ALLOCATE
from kube.objects import Pod

SAME_PCIE: Final = "SamePCIe"
_FIELD: Final = f"metadata.annotations[{JOINT_ALLOCATE}]"
_LONGEST: Final = 4_096
_EXAMPLE: Final = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'


class _Stated(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    device_types: list[str]
    required_scope: str = ""


def joint_of(pod: Pod, asks: tuple[DeviceAsk, ...]) -> Joint | None:
    """What the annotation says of these asks, None without it. Raises `Refused` with the rule that is broken."""
    text = pod.annotations.get(JOINT_ALLOCATE)
    if text is None:
        return None
    try:
        if len(text) > _LONGEST:
            raise msgspec.ValidationError("too long")
        stated = msgspec.json.decode(text, type=_Stated)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(
            "joint-json", f"annotation {JOINT_ALLOCATE} must be JSON such as {_EXAMPLE}", field=_FIELD
        ) from error
    if stated.required_scope not in ("", SAME_PCIE):
        raise Refused("joint-scope", f"requiredScope of {JOINT_ALLOCATE} is {SAME_PCIE}, or left out", field=_FIELD)
    types = tuple(dict.fromkeys(stated.device_types))
    if len(types) < 2 or len(types) < len(stated.device_types):
        raise Refused(
            "joint-types", f"deviceTypes of {JOINT_ALLOCATE} names two types or more, each once", field=_FIELD
        )
    if not {ask.type for ask in asks}.issuperset(types):
        raise Refused(
            "joint-not-asked",
            f"deviceTypes of {JOINT_ALLOCATE} names a type that the pod does not ask for",
            field=_FIELD,
        )
    return Joint(types=types, required=stated.required_scope == SAME_PCIE)
