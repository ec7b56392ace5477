"""An in-memory cache of rows that carry the revision of their last change.

A writer sets a row's revision to that of its transaction (`nodes.revisions` for devices); a reader fetches the rows at
or above a mark.

Invariants: the result of `refresh` includes every transaction that committed before the call, also where two writers
commit in the reverse order of their revisions. On SQLite writers are serial, and the mark is the newest revision read.
On PostgreSQL a revision is the writing transaction's id, and the mark is `pg_snapshot_xmin`, the oldest transaction
open at the last read: rows may be read twice, but none that commits late is missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from storage.cursors import Query, hot_cursor, marks, on_postgresql, run_together
from storage.switch_interval import SHORTEST_SWITCH_INTERVAL

EVERYTHING: Final = -1
"""A mark below every revision."""
_MARK_AND_CLOCK: Final = (
    "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS mark, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock"
)
"""The clock in microseconds: it comes with every row, and a bigint is decoded ten times faster than a timestamp."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Revisioned(Protocol):
    """A NamedTuple with a field `revision`."""

    @property
    def revision(self) -> int:
        """The revision of the row's last change."""


Row = TypeVar("Row", bound=Revisioned)
Whole = TypeVar("Whole", bound=Revisioned)
State = TypeVar("State")


class AsText(NamedTuple):
    """Several columns as one text: SQLite takes a microsecond for each column of a query."""

    columns: str


class Changes(NamedTuple, Generic[Row]):
    """Rows that changed since a mark. `mark`: that of the next read; `now`: the database's clock; `beside`: the rows of
    queries that were run with this one.
    """

    mark: int
    now: datetime
    rows: list[Row]
    beside: Sequence[list[Any]] = ()


class Source(Generic[Row]):
    """The query of rows. `tables`: the FROM clause; `columns`: the SQL of each field of `row`, and of others."""

    def __init__(self, row: type[Row], *, tables: str, columns: Mapping[str, str | AsText]) -> None:
        kind: Any = row  # a protocol cannot say that it is a NamedTuple
        self._make: Callable[[Iterable[Any]], Row] = kind._make
        self._names: tuple[str, ...] = kind._fields
        self._columns = columns
        self._tables = tables
        revision = columns["revision"]
        joined = f"({tables})" if " JOIN " in tables else tables  # PostgreSQL takes a lone table without parentheses
        self._lite = f"{self._select(postgresql=False)} WHERE {revision} > %s"
        self._postgresql = (
            f"SELECT s.mark, s.clock, {self._named(postgresql=True)} "  # noqa: S608 - SQL of the callers' modules
            f"FROM ({_MARK_AND_CLOCK}) s "
            f"LEFT JOIN {joined} ON {revision} >= %s"
        )

    def since(self, mark: int, beside: Sequence[Query] = ()) -> Changes[Row]:
        """Rows that changed since the read that returned this mark. One query.

        `beside`: queries that run after it, on PostgreSQL in the same round trip.
        """
        make = self._make
        if on_postgresql():
            found, *others = run_together([Query(self._postgresql, [mark]), *beside])
            at = 2 + self._names.index("revision")
            rows = [make(row[2:]) for row in found if row[at] is not None]
            return Changes(found[0][0], _EPOCH + timedelta(microseconds=found[0][1]), rows, others)
        rows = [make(row) for row in _fetched(self._lite, [mark])]
        newest = max(row.revision for row in rows) if rows else mark
        return Changes(newest, datetime.now(UTC), rows, run_together(beside) if beside else ())

    def having(self, column: str, values: Iterable[object]) -> list[Row]:
        """Rows with one of the values in this column. One query."""
        parameters = list(values)
        statement = f"{self._select(postgresql=on_postgresql())} WHERE {self._columns[column]} IN ({marks(parameters)})"
        return [self._make(row) for row in _fetched(statement, parameters)]

    def _select(self, *, postgresql: bool) -> str:
        return f"SELECT {self._named(postgresql=postgresql)} FROM {self._tables}"  # noqa: S608 - modules' own SQL

    def _named(self, *, postgresql: bool) -> str:
        one_text = "ROW({})::text" if postgresql else "json_array({})"
        named = [self._columns[name] for name in self._names]
        return ", ".join(one_text.format(one.columns) if isinstance(one, AsText) else one for one in named)


def _fetched(statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    with hot_cursor() as cursor:
        cursor.execute(statement, values)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


@dataclass(frozen=True, slots=True)
class _Snapshot(Generic[State]):
    """A state, and the mark of the read that it is from."""

    state: State
    mark: int


class RevisionedCache(Generic[Whole, Row, State]):
    """A state built from rows. Thread-safe: refreshing is locked.

    `build`: the state of all rows. `patch`: the state with changed rows; None if it has to be rebuilt. `differences`:
    the number of rows that differ between two states.
    """

    def __init__(
        self,
        *,
        whole: Source[Whole],
        changed: Source[Row],
        build: Callable[[list[Whole]], State],
        patch: Callable[[State, list[Row]], State | None],
        differences: Callable[[State, State], int],
    ) -> None:
        self._whole = whole
        self._changed = changed
        self._build = build
        self._patch = patch
        self._differences = differences
        self._lock = threading.Lock()
        self._snapshot: _Snapshot[State] | None = None

    @property
    def loaded(self) -> bool:
        """Whether the state has been loaded."""
        return self._snapshot is not None

    def forget(self) -> None:
        """Drop the state; the next call rebuilds it."""
        with self._lock:
            self._snapshot = None

    def refresh(self) -> tuple[State, datetime]:
        """The current state, and the database's clock."""
        state, now, _ = self.refresh_beside(())
        return state, now

    def refresh_beside(self, queries: Sequence[Query]) -> tuple[State, datetime, Sequence[list[Any]]]:
        """The same, and the rows of queries that run after the refresh, on PostgreSQL in the same round trip."""
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None:
                snapshot = self._snapshot = self._load()
            changes = self._changed.since(snapshot.mark, queries) if queries else self._changed.since(snapshot.mark)
            if changes.rows or changes.mark != snapshot.mark:
                snapshot = self._snapshot = self._updated(snapshot, changes) or self._load()
            return snapshot.state, changes.now, changes.beside

    def compare(self) -> int:
        """Rebuild the state from all rows, and return how many rows differed from the old state."""
        with SHORTEST_SWITCH_INTERVAL:  # 0.3 s for 40,000 rows
            return self._compare()

    def _compare(self) -> int:
        fresh = self._load()
        with self._lock:
            old = self._snapshot
            if old is None:
                self._snapshot = fresh
                return 0
            # bring both up to date by one read, so that concurrent commits are no differences
            changes = self._changed.since(min(old.mark, fresh.mark))
            old_now, fresh_now = self._updated(old, changes), self._updated(fresh, changes)
            self._snapshot = fresh_now
            return self._differences(old_now.state, fresh_now.state) if old_now and fresh_now else 0

    def _load(self) -> _Snapshot[State]:
        changes = self._whole.since(EVERYTHING)
        return _Snapshot(self._build(changes.rows), changes.mark)

    def _updated(self, snapshot: _Snapshot[State], changes: Changes[Row]) -> _Snapshot[State] | None:
        state = self._patch(snapshot.state, changes.rows) if changes.rows else snapshot.state
        return None if state is None else _Snapshot(state, changes.mark)
