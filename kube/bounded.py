"""Bounds on JSON that strangers send, checked on its bytes before any object is made.

Used by every door that decodes such JSON: reviews, the extender's bodies, REST. A body of 9 MB made of `[],[],…`
becomes three million lists, 80 bytes each and more around them; the bytes say beforehand how many there can be.

Invariants:
- What passes has at most so many values: each is followed by a comma or stands in front of a bracket that closes, so
  there are no more than commas and opening brackets together, plus one. Commas inside of texts are counted too: the
  number is an upper bound.
- A body of 256 KiB or less always passes, unread: it cannot hold enough values to matter, and nearly all bodies are
  that small.

How deep a body is nested is bounded by the decoders: orjson refuses beyond 1,024 levels, msgspec raises RecursionError.
"""

from __future__ import annotations

from typing import Final

import msgspec

SMALL_BYTES: Final = 256 * 1024
OBJECT_VALUES_MOST: Final = 200_000
"""Of one Kubernetes object: a Pod has a few thousand at most."""
REVIEW_VALUES_MOST: Final = 2 * OBJECT_VALUES_MOST
"""Of an AdmissionReview, which carries the object before and after a change."""
EXTENDER_VALUES_MOST: Final = 2_000_000
"""Of what kube-scheduler sends: 5,000 whole Node objects have some 400 each."""
REST_VALUES_MOST: Final = 500_000
"""Of a body over REST: the links of 340 GPUs, each with each, are 460,000."""


class TooMany(ValueError):
    """More values than are taken; the text says how many those are."""


def check_values(data: bytes | msgspec.Raw, *, most: int) -> None:
    """Raises TooMany where the JSON may hold more values than `most`."""
    if isinstance(data, msgspec.Raw):
        if memoryview(data).nbytes <= SMALL_BYTES:
            return
        data = bytes(data)
    elif len(data) <= SMALL_BYTES:
        return
    if data.count(b",") + data.count(b"[") + data.count(b"{") >= most:
        raise TooMany(f"it holds more than {most} values")
