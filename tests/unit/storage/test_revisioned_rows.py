"""A state in memory that follows rows by their revisions."""

import sys
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from storage.revisioned_rows import EVERYTHING, AsText, Changes, RevisionedCache, Source
from storage.switch_interval import SHORTEST_SWITCH_SECONDS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A row of a table: `name` is its key."""

    revision: int
    name: str
    value: int


class Table:
    """Rows as a database of serial writers would give them."""

    def __init__(self):
        self.rows = {}
        self.looks = []
        self.meanwhile = []

    def write(self, name, value):
        self.rows[name] = Row(1 + max((row.revision for row in self.rows.values()), default=0), name, value)

    def since(self, mark):
        self.looks.append(mark)
        found = [row for row in self.rows.values() if row.revision > mark]
        newest = max((row.revision for row in found), default=mark)
        for name, value in self.meanwhile:
            self.write(name, value)
        self.meanwhile = []
        return Changes(newest, NOW, found)


def built(rows):
    return {row.name: row.value for row in rows}


def patched(state, rows):
    """A name that is new, or a negative value, needs the whole table."""
    if any(row.name not in state or row.value < 0 for row in rows):
        return None
    return state | built(rows)


def differing(ours, fresh):
    return sum(ours.get(name) != fresh.get(name) for name in ours.keys() | fresh.keys())


@pytest.fixture
def table():
    made = Table()
    made.write("a", 1)
    made.write("b", 2)
    return made


@pytest.fixture
def cache(table):
    return RevisionedCache(whole=table, changed=table, build=built, patch=patched, differences=differing)


def test_only_what_changed_is_asked_for(table, cache):
    assert cache.refresh() == ({"a": 1, "b": 2}, NOW)
    table.write("b", 3)
    assert cache.refresh() == ({"a": 1, "b": 3}, NOW)
    assert table.looks == [EVERYTHING, 2, 2]
    cache.refresh()
    assert table.looks[-1] == 3


def test_nothing_new_leaves_the_state_as_it_is(cache):
    before, _ = cache.refresh()
    assert cache.refresh()[0] is before


def test_what_a_patch_cannot_say_is_built_anew(table, cache):
    cache.refresh()
    table.write("c", 3)
    assert cache.refresh()[0] == {"a": 1, "b": 2, "c": 3}
    assert table.looks[-1] == EVERYTHING


def test_what_is_committed_while_the_state_is_built_is_in_the_next_answer(table, cache):
    table.meanwhile = [("a", 7)]
    assert cache.refresh()[0] == {"a": 7, "b": 2}


def test_a_state_that_is_forgotten_is_built_anew(table, cache):
    cache.refresh()
    assert cache.loaded
    cache.forget()
    assert not cache.loaded
    table.rows["a"] = Row(1, "a", 9)
    assert cache.refresh()[0] == {"a": 9, "b": 2}


@pytest.mark.parametrize(
    ("meanwhile", "past_the_revisions", "want", "then"),
    [
        pytest.param([], {}, 0, {"a": 1, "b": 2}, id="alike"),
        pytest.param([], {"a": 5}, 1, {"a": 5, "b": 2}, id="a row written past its revision is repaired"),
        pytest.param([("b", 4)], {}, 0, {"a": 1, "b": 4}, id="what commits meanwhile is no difference"),
        pytest.param([("b", 4)], {"a": 5}, 1, {"a": 5, "b": 4}, id="both"),
        pytest.param([("c", 4)], {"a": 5}, 0, {"a": 5, "b": 2, "c": 4}, id="what cannot be patched is built anew"),
    ],
)
def test_a_comparison_with_all_rows(table, cache, meanwhile, past_the_revisions, want, then):
    cache.refresh()
    for name, value in past_the_revisions.items():
        table.rows[name] = table.rows[name]._replace(value=value)
    table.meanwhile = meanwhile
    assert cache.compare() == want
    assert cache.refresh()[0] == then


def test_a_comparison_before_the_first_look_builds_the_state(cache):
    assert cache.compare() == 0
    assert cache.refresh()[0] == {"a": 1, "b": 2}


def test_a_comparison_lets_other_threads_in_often(table):
    """It takes 0.3 s for 40,000 rows, and the event loop waits for the interpreter once for each socket."""
    intervals = []

    def noted(rows):
        intervals.append(sys.getswitchinterval())
        return built(rows)

    before = sys.getswitchinterval()
    try:
        cache = RevisionedCache(whole=table, changed=table, build=noted, patch=patched, differences=differing)
        cache.refresh()
        cache.compare()
        assert intervals == pytest.approx([before, SHORTEST_SWITCH_SECONDS])
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("ledger_db", ["sqlite", "postgresql"], indirect=True)
def test_columns_are_read_by_their_names(ledger_db):
    """Whatever order columns are declared in, and with columns that a row does not name."""
    columns: dict[str, str | AsText] = {
        "value": "t.amount * 2",
        "unused": "t.amount",
        "text": AsText("t.amount, t.key"),
        "name": "t.key",
        "revision": "t.stamp",
    }
    rows = "(SELECT 'a' AS key, 4 AS amount, 7 AS stamp UNION ALL SELECT 'b', 5, 9) t"
    source = Source(Row, tables=rows, columns=columns)
    assert sorted(source.since(EVERYTHING).rows) == [Row(7, "a", 8), Row(9, "b", 10)]
    assert [row.name for row in source.since(8).rows] == ["b"]
    assert source.since(100).rows == []
    assert source.having("name", ["b", "c"]) == [Row(9, "b", 10)]

    class Texts(NamedTuple):
        revision: int
        text: str

    texts = {row.text for row in Source(Texts, tables=rows, columns=columns).since(EVERYTHING).rows}
    assert texts == ({"(4,a)", "(5,b)"} if ledger_db.vendor == "postgresql" else {'[4,"a"]', '[5,"b"]'})
