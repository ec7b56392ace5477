"""`nvidia.com/gpu: N`: N whole GPUs; `nvidia.com/mig-1g.10gb: N`: N MIG instances of that profile. As pods written for the device plugin ask.

Called by `claims.dialects.parse`. HAMi's pods ask so too, and narrow down by annotations which GPUs they will have (`claims.dialects.hami`).
"""

from __future__ import annotations

from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, Limits
from kube.device_types import GPU, mig_type
from kube.keys import MIG_RESOURCES, NATIVE_GPU

DEVICES_MOST = 1_000
"""More devices of one type than any node has."""


def native_ask(count: int, *, limits: Limits | None = None) -> DeviceAsk:
    """`count` whole GPUs (core 100 and ratio 100 each) within the limits. Raises `Refused`."""
    if count > DEVICES_MOST:
        raise Refused("too-many", f"{NATIVE_GPU} asks for more than {DEVICES_MOST} devices")
    return DeviceAsk(type=GPU, count=count, limits=limits)


def is_mig_resource(name: str) -> bool:
    """Whether it is NVIDIA's device plugin's name (strategy mixed) of MIG instances of a profile."""
    return name.startswith(MIG_RESOURCES) and name != MIG_RESOURCES


def mig_ask(name: str, count: int, *, limits: Limits | None = None) -> DeviceAsk:
    """`count` instances of the profile that the resource names, within the limits. Raises `Refused`."""
    if count > DEVICES_MOST:
        raise Refused("too-many", f"{name} asks for more than {DEVICES_MOST} devices")
    return DeviceAsk(type=mig_type(name[len(MIG_RESOURCES) :]), count=count, limits=limits)
