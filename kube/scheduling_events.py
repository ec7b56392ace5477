"""Events FailedScheduling: kube-scheduler writes one for each attempt at a pod that failed, also where the pod stays as it was.

Used by the watch that ends holds. Only the fields that tell the attempt are read. A repeated event of one pod version is
written once more as a series; newer schedulers count from 2 there, older ones from 1.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kube.objects import ObjectMeta

REASON: Final = "FailedScheduling"
SELECTOR: Final = f"reason={REASON},involvedObject.kind=Pod"


class ObjectReference(msgspec.Struct, rename="camel"):
    """The object that an event is about, at the version that its author had."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Series(msgspec.Struct):
    """How often the event came, as far as it is written."""

    count: int = 1


class SchedulingEvent(msgspec.Struct, rename="camel"):
    """An event of the core group."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    message: str = ""
    series: Series | None = None

    @property
    def times(self) -> int:
        """How many failures it tells of: 1, and at least 2 for a series."""
        return 1 if self.series is None else max(2, self.series.count)
