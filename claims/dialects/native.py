"""`nvidia.com/gpu: N`: N whole GPUs, as pods written for the device plugin ask.

Called by `claims.dialects.parse`. HAMi's pods ask so too, and narrow down by annotations which GPUs they will have (`claims.dialects.hami`).
"""

from __future__ import annotations

from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, Limits
from kube.device_types import GPU
from kube.keys import NATIVE_GPU

DEVICES_MOST = 1_000
"""More devices of one type than any node has."""


def native_ask(count: int, *, limits: Limits | None = None) -> DeviceAsk:
    """`count` whole GPUs (core 100 and ratio 100 each) within the limits. Raises `Refused`."""
    if count > DEVICES_MOST:
        raise Refused("too-many", f"{NATIVE_GPU} asks for more than {DEVICES_MOST} devices")
    return DeviceAsk(type=GPU, count=count, limits=limits)
