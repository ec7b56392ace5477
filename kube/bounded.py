"""Bounds on untrusted JSON, checked on its bytes before it is decoded: reviews, the extender's bodies, REST.

A body of 9 MB made of `[],[],…` becomes three million lists of 80 bytes each and more.

Invariants:
- The number of values is at most that of commas and opening brackets plus one; commas inside strings are counted too.
- A body of 256 KiB or less always passes without being scanned.

The decoders bound the nesting: orjson refuses more than 1,024 levels, msgspec raises RecursionError.
"""

from __future__ import annotations

from typing import Final

import msgspec

SMALL_BYTES: Final = 256 * 1024
OBJECT_VALUES_MOST: Final = 200_000
"""Of a Kubernetes object: a Pod has a few thousand at most."""
REVIEW_VALUES_MOST: Final = 2 * OBJECT_VALUES_MOST
"""Of an AdmissionReview, which carries the object before and after a change."""
EXTENDER_VALUES_MOST: Final = 2_000_000
"""Of what kube-scheduler sends: 5,000 whole Node objects have some 400 each."""
REST_VALUES_MOST: Final = 500_000
"""Of a body over REST: the links of 340 GPUs, each with each, are 460,000."""


class TooManyValues(ValueError):
    """The JSON may hold more values than allowed."""


def check_values(data: bytes | msgspec.Raw, *, most: int) -> None:
    """Raises `TooManyValues` if the JSON may hold more values than `most`."""
    if isinstance(data, msgspec.Raw):
        if memoryview(data).nbytes <= SMALL_BYTES:
            return
        data = bytes(data)
    elif len(data) <= SMALL_BYTES:
        return
    if data.count(b",") + data.count(b"[") + data.count(b"{") >= most:
        raise TooManyValues(f"it holds more than {most} values")
