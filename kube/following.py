"""One collection followed in turns by whichever worker has the lock: the watch itself, whatever its events mean.

Called by the watch tasks of the rooms (pods, nodes, GpuClaims). Kept true: the resourceVersion is carried over
only past events whose handling has returned; a handler that fails leaves them to the next turn; a worker that
lost the lock stops reading at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from enum import Enum, auto
from typing import Final, TypeVar

import structlog

from kube.client import Cluster
from kube.resources import Resource
from kube.turns import turn
from kube.watch import Bookmark, Event, ListWatch

T = TypeVar("T")

TURN_SECONDS: Final = 25.0
CARRY_EVERY: Final = 200
"""Events after which the resourceVersion is noted within a turn."""

log = structlog.get_logger(__name__)


class Followed(Enum):
    """How a turn ended."""

    ELSEWHERE = auto()
    """Another worker follows the collection."""
    DONE = auto()
    """The time was over: go on at once."""
    STOPPED = auto()
    """The lock was lost or the worker shuts down: do not go on."""


def follow(
    cluster: Cluster,
    *,
    redis_url: str,
    name: str,
    resource: Resource,
    kind: type[T],
    handle: Callable[[Event[T]], None],
    settle: Callable[[], None] = lambda: None,
    field_selector: str | None = None,
    from_now: bool = False,
    seconds: float = TURN_SECONDS,
) -> Followed:
    """Give `handle` every event for about `seconds`. `settle()` returns when all handling begun is complete.

    `from_now`: what is there already is neither listed nor given, at the start and after a gap.

    Raises what `handle` raises, `kube.errors` when the turn ends with the cluster out of reach, and Redis' errors.
    """
    with turn(redis_url, name) as held:
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
        log.debug("watch.turn", of=name, number=held.number, since=watch.resource_version)
        since = 0
        try:
            with closing(watch.turn(seconds=seconds, stop=held.stop)) as events:
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
        return Followed.STOPPED if held.stop.is_set() else Followed.DONE
