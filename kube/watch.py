"""List and watch of one collection, in bounded runs that any worker can continue.

The official client's watch requests no bookmarks and does not detect a silent connection. Invariants:
- `resource_version` moves only after the consumer has come back for the next event: when it fails, the event comes
  again.
- After a gap (410, first run) everything is listed and given as one `Relisted`.
- No read lasts longer than the run, and a `Stop` ends every wait.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Literal, TypeVar

import msgspec
import structlog

from kube.client import Cluster
from kube.errors import Gone, Status, TemporaryKubeError, Throttled, Unintelligible, Unreachable, from_status
from kube.listing import Unreadable, decode, decode_chunk, decode_each
from kube.objects import Key, Named
from kube.resources import Resource

T = TypeVar("T", bound=Named)

SILENCE_SECONDS: Final = 75.0
"""A bookmark comes about every minute: a stream that is silent for longer is broken."""
FROM_THE_FUTURE: Final = "ResourceVersionTooLarge"
"""Cause of an error where the server was restored from a backup: our resourceVersion is newer than its own."""
GRACE_SECONDS: Final = 5.0
"""How much later than `timeoutSeconds` the server may end the stream."""
BACKOFF_SECONDS: Final = 0.2
BACKOFF_CAP_SECONDS: Final = 5.0
SHORTEST_SECONDS: Final = 1.0
"""A watch that ends earlier without an event is broken: something on the way does not stream."""
RELIST_SPREAD_SECONDS: Final = 1.0
"""Watches that expire together spread their lists over this time."""

log = structlog.get_logger(__name__)


class Stop(threading.Event):
    """An event that also interrupts a blocked read."""

    def __init__(self) -> None:
        super().__init__()
        self._interrupts: set[Callable[[], None]] = set()
        self._guard = threading.Lock()

    def set(self) -> None:
        """Stop every run that uses this."""
        super().set()
        with self._guard:
            for interrupt in self._interrupts:
                interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Inside the context `set` calls `interrupt`; at once if it is set already."""
        with self._guard:
            self._interrupts.add(interrupt)
        try:
            if self.is_set():
                interrupt()
            yield
        finally:
            with self._guard:
                self._interrupts.discard(interrupt)


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """One object was added, modified or deleted; `object` is its new state, or its last one when deleted."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    key: Key
    object: T


class Relisted(msgspec.Struct, Generic[T], frozen=True):
    """Everything that exists at `resource_version`; other objects that a consumer knows are deleted."""

    objects: dict[Key, T]
    resource_version: str
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def keys(self) -> frozenset[Key]:
        """Keys of all objects, readable or not."""
        return frozenset(self.objects) | {item.key for item in self.unreadable}


class Bookmark(msgspec.Struct, frozen=True):
    """Every event up to `resource_version` has been sent."""

    resource_version: str


Event = Changed[T] | Relisted[T] | Bookmark | Unreadable
"""`Unreadable`: an added or modified object that could not be decoded."""


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class ListWatch(Generic[T]):
    """A watch of one collection. Its state between runs is `resource_version`; None means list first."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        kind: type[T],
        *,
        namespace: str | None = None,
        field_selector: str | None = None,
        label_selector: str | None = None,
        resource_version: str | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        from_now: bool = False,
    ) -> None:
        """`namespace` None: of all. `from_now`: skip existing objects, at the start and after a gap."""
        self._from_now = from_now
        self.resource_version = resource_version
        self._cluster = cluster
        self._path = resource.path(namespace=namespace)
        self._label_selector = label_selector
        self._kind = kind
        self._field_selector = field_selector
        self._silence_seconds = silence_seconds

    def events(self, *, seconds: float, stop: Stop | None = None) -> Generator[Event[T], None, None]:
        """Events for about `seconds`, or until `stop` is set.

        Temporary errors are retried with growing pauses; if the run ends in such a state, the last one is raised.
        Permanent errors are raised at once.
        """
        stop = stop or Stop()
        clock = self._cluster.clock
        ends = clock() + seconds
        failures = 0
        broken: TemporaryKubeError | None = None
        while not stop.is_set() and clock() < ends:
            try:
                if self.resource_version is None:
                    yield from self._relist()
                opened, silent = clock(), True
                for event in self._stream(seconds=ends - clock(), stop=stop):
                    failures, silent = 0, False
                    yield event
                if silent and not stop.is_set() and clock() < min(opened + SHORTEST_SECONDS, ends):
                    raise Unreachable("the watch ended as soon as it began", request=f"WATCH {self._path}")
                broken = None
            except Gone as error:
                log.info(
                    "kube.watch_expired", path=self._path, why=error.message, resource_version=self.resource_version
                )
                self.resource_version = None
                stop.wait(min(RELIST_SPREAD_SECONDS * self._cluster.chance(), max(ends - clock(), 0.0)))
            except TemporaryKubeError as error:
                if stop.is_set():
                    return
                if error.caused_by(FROM_THE_FUTURE):
                    self.resource_version = None
                failures += 1
                pause = min(BACKOFF_SECONDS * 2.0 ** (failures - 1), BACKOFF_CAP_SECONDS)
                if isinstance(error, Throttled) and error.retry_after is not None:
                    pause = max(pause, error.retry_after)
                pause *= 0.5 + self._cluster.chance() / 2
                log.warning("kube.watch_broken", path=self._path, error=str(error), failures=failures)
                broken = error
                stop.wait(min(pause, max(ends - clock(), 0.0)))
        if broken is not None and not stop.is_set():
            raise broken

    def _relist(self) -> Iterator[Relisted[T]]:
        if self._from_now:
            # without the selector: the server would search the whole collection for a first match
            body = self._cluster.request("GET", self._path, query={"limit": 1})
            self.resource_version = decode_chunk(body, Named, request=f"GET {self._path}").resource_version
            return
        listing = self._cluster.list(
            self._path, self._kind, field_selector=self._field_selector, label_selector=self._label_selector
        )
        objects = {item.key: item for item in listing.items}
        yield Relisted(objects, listing.resource_version, tuple(listing.unreadable))
        self.resource_version = listing.resource_version

    def _stream(self, *, seconds: float, stop: Stop) -> Iterator[Event[T]]:
        """One watch request, until the server ends it."""
        if seconds <= 0:
            return
        query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": self.resource_version,
            "timeoutSeconds": math.ceil(seconds),
            "fieldSelector": self._field_selector,
            "labelSelector": self._label_selector,
        }
        silence = min(self._silence_seconds, seconds + GRACE_SECONDS)
        with (
            self._cluster.stream(self._path, query=query, silence_seconds=silence) as stream,
            stop.interrupting(stream.interrupt),
        ):
            ends = self._cluster.clock() + seconds
            for line in stream.lines():
                event, version = self._event(line)
                yield event
                self.resource_version = version
                if stop.is_set() or self._cluster.clock() >= ends:
                    return

    def _event(self, text: bytes) -> tuple[Event[T], str]:
        """The event of a line, and the resourceVersion after it. Raises the error that an ERROR event carries."""
        line = decode(text, _Line, request=f"WATCH {self._path}")
        if line.type == "ERROR":
            raise from_status(decode(line.object, Status), request=f"WATCH {self._path}")
        named = decode(line.object, Named)
        version = named.metadata.resource_version
        if line.type == "BOOKMARK":
            return Bookmark(version), version
        if line.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise Unintelligible(f"watch event of type {line.type!r}", request=f"WATCH {self._path}")
        item = decode_each(line.object, self._kind)
        if isinstance(item, Unreadable):
            if line.type != "DELETED":
                return item, version
            raise Gone("an unreadable object was deleted: list again")
        kind: Literal["ADDED", "MODIFIED", "DELETED"] = line.type  # type: ignore[assignment]  # checked above
        return Changed(kind, named.key, item), version
