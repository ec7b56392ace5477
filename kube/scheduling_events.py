"""FailedScheduling events, which kube-scheduler writes for each failed attempt at a pod, even if the pod is unchanged.

A repeated event of one pod version is written again as a series; newer schedulers count from 2 there, older ones from
1.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kube.objects import Named

REASON: Final = "FailedScheduling"
SELECTOR: Final = f"reason={REASON},involvedObject.kind=Pod"


class ObjectReference(msgspec.Struct, rename="camel"):
    """The object of an event, at the version that the author had read."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Series(msgspec.Struct):
    """How often the event was repeated."""

    count: int = 1


class SchedulingEvent(Named):
    """An event of the core group."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    message: str = ""
    series: Series | None = None

    @property
    def times(self) -> int:
        """How many failures it stands for: 1, or at least 2 for a series."""
        return 1 if self.series is None else max(2, self.series.count)
