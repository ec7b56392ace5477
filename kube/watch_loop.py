"""A watch of one collection in bounded runs, by one worker at a time.

Called by the watch tasks (pods, nodes, GpuClaims), which pass the lock. Invariants: the stored resourceVersion covers
only events that were handled, so that those of a failed handler come again; a worker that lost the lock stops reading.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

import structlog

from kube.client import Cluster
from kube.objects import Named
from kube.resources import Resource
from kube.watch import Bookmark, Event, ListWatch, Stop

T = TypeVar("T", bound=Named)

RUN_SECONDS: Final = 25.0
CARRY_EVERY: Final = 200
"""Events after which the resourceVersion is stored within a run."""

log = structlog.get_logger(__name__)


class HeldLock(Protocol):
    """A held lock."""

    @property
    def carried(self) -> str | None:
        """The resourceVersion that the last run stored."""

    def carry(self, value: str | None) -> bool:
        """Store the resourceVersion for the next run. False, and nothing is written, when the lock is lost."""


class Lock(Protocol):
    """A lock by name across all workers."""

    def __call__(self, name: str, /, *, stop: Stop) -> AbstractContextManager[HeldLock | None]:
        """The held lock, None while another worker holds it. `stop` is set when the lock is lost."""


class Followed(Enum):
    """How a run ended."""

    ELSEWHERE = auto()
    """Another worker watches the collection."""
    DONE = auto()
    """The time was over: continue at once."""
    STOPPED = auto()
    """The lock was lost or the worker shuts down: do not continue."""


def follow(
    cluster: Cluster,
    *,
    lock: Lock,
    name: str,
    resource: Resource,
    kind: type[T],
    handle: Callable[[Event[T]], None],
    settle: Callable[[], None] = lambda: None,
    field_selector: str | None = None,
    from_now: bool = False,
    seconds: float = RUN_SECONDS,
) -> Followed:
    """Call `handle` with every event for about `seconds`. `settle()` waits until all events are handled.

    `from_now`: skip existing objects, at the start and after a gap. Raises what `handle`, `settle` and `lock` raise,
    and `kube.errors` when the run ends with the API server unreachable.
    """
    stop = Stop()
    with lock(name, stop=stop) as held:
        if held is None:
            return Followed.ELSEWHERE
        watch = ListWatch(
            cluster,
            resource,
            kind,
            field_selector=field_selector,
            resource_version=held.carried,
            from_now=from_now,
        )
        log.debug("watch.run", of=name, since=watch.resource_version)
        since = 0
        try:
            with closing(watch.events(seconds=seconds, stop=stop)) as events:
                for event in events:
                    handle(event)
                    since += 1
                    if isinstance(event, Bookmark) or since >= CARRY_EVERY:
                        settle()
                        held.carry(watch.resource_version)
                        since = 0
        finally:
            settle()
            held.carry(watch.resource_version)
        return Followed.STOPPED if stop.is_set() else Followed.DONE
