"""The table of latest samples: what counts as new, what is kept, what is forgotten."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import BadFrame, Details, DeviceDetails, LinkDetails, ProcessDetails, Sample, decode, encode
from nodes.live.flush import read_latest
from nodes.live.samples import FORGET_SECONDS, DetailsView, FrameResult, SampleTable, SampleView

ORDER = ("GPU-0", "GPU-1")


def _table(node: str = "n1", boot: str = "b1", *, now: float = 0.0, **options: int) -> SampleTable:
    table = SampleTable(**options)
    assert table.advance(node, boot=boot, seq=0, time=now, now=now) is FrameResult.NEW
    table.order(node, ORDER)
    return table


def _put(
    table: SampleTable, seq: int, *, boot: str = "b1", time: float = 1.0, now: float = 1.0, percent: int = 50
) -> FrameResult:
    sample = Sample(boot, seq, time, utilisation_percent=[percent, None])
    return table.put("n1", sample, now=now, received_at=1000 + now)[0]


def test_sample_is_read_back_by_device() -> None:
    table = _table()
    assert _put(table, 1) is FrameResult.NEW
    view = table.latest()["n1"]
    assert view.of("GPU-0") == {**dict.fromkeys(view.of("GPU-0") or {}), "utilisation_percent": 50}
    assert (view.of("GPU-1") or {})["utilisation_percent"] is None
    assert view.of("GPU-9") is None
    assert view.age_seconds(now=1004.0) == 3.0


@pytest.mark.parametrize(
    ("seq", "boot", "time", "now", "want"),
    [
        pytest.param(6, "b1", 11.0, 11.0, FrameResult.NEW, id="the next"),
        pytest.param(9, "b1", 11.0, 11.0, FrameResult.NEW, id="a gap"),
        pytest.param(5, "b1", 11.0, 11.0, FrameResult.OLD, id="the same again"),
        pytest.param(4, "b1", 11.0, 11.0, FrameResult.OLD, id="out of order"),
        pytest.param(6, "b1", 3.0, 11.0, FrameResult.NEW, id="the node's clock went back"),
        pytest.param(0, "b0", 9.0, 11.0, FrameResult.OLD, id="replayed from the boot before"),
        pytest.param(0, "b2", 12.0, 12.0, FrameResult.NEW, id="the agent started again"),
        pytest.param(0, "b2", 3.0, 500.0, FrameResult.NEW, id="started again with its clock behind, after a silence"),
    ],
)
def test_replayed_and_reordered_frames(seq: int, boot: str, time: float, now: float, want: FrameResult) -> None:
    """NODE-2 a frame that was sent before another one that was taken changes nothing."""
    table = _table()
    assert _put(table, 5, time=10.0, now=10.0, percent=10) is FrameResult.NEW
    assert table.advance("n1", boot=boot, seq=seq, time=time, now=now) is want
    if want is FrameResult.OLD:
        assert _put(table, seq, boot=boot, time=time, now=now, percent=99) in (FrameResult.OLD, FrameResult.NO_ORDER)
    assert table.latest()["n1"].utilisation_percent == (10, None)


def test_new_boot_must_say_its_order_again() -> None:
    table = _table()
    assert table.advance("n1", boot="b2", seq=0, time=2.0, now=2.0) is FrameResult.NEW
    assert not table.knows_order("n1")
    assert _put(table, 1, boot="b2", time=3.0) is FrameResult.NO_ORDER
    table.order("n1", ORDER)
    assert _put(table, 1, boot="b2", time=3.0) is FrameResult.NEW


def test_sample_may_bring_its_order() -> None:
    table = SampleTable()
    sample = Sample("b", 1, 1.0, power_watts=[70], devices=["GPU-7"])
    assert table.put("n9", sample, now=1.0, received_at=1.0) == (FrameResult.NEW, 0)
    assert (table.latest()["n9"].of("GPU-7") or {})["power_watts"] == 70


def test_memory_is_bounded_and_the_longest_silent_leaves() -> None:
    table = SampleTable(most_nodes=3)
    for number, name in enumerate(["a", "b", "c"]):
        table.advance(name, boot="b", seq=1, time=1.0, now=float(number))
    table.advance("a", boot="b", seq=2, time=2.0, now=5.0)
    table.advance("d", boot="b", seq=1, time=1.0, now=6.0)
    assert set(table.heard_since(float("-inf"), now=6.0)) == {"a", "c", "d"}


def test_silent_nodes_are_forgotten() -> None:
    table = _table()
    _put(table, 1)
    table.forget_silent(now=FORGET_SECONDS)
    assert table.take_dropped() == set()
    table.forget_silent(now=FORGET_SECONDS + 1)
    assert table.take_dropped() == {"n1"}
    assert table.latest() == {}
    assert table.take_changed() == {}


def test_changed_samples_are_taken_once_and_may_be_put_back() -> None:
    table = _table()
    _put(table, 1)
    changed = table.take_changed()
    assert set(changed) == {"n1"}
    assert table.take_changed() == {}
    table.put_back(changed)
    assert set(table.take_changed()) == {"n1"}


def test_heard_since_a_mark() -> None:
    table = SampleTable()
    for name, now in (("a", 1.0), ("b", 4.0)):
        table.advance(name, boot=f"boot-{name}", seq=1, time=1.0, now=now)
    heard = table.heard_since(3.0, now=5.0)
    assert {name: (entry.boot, entry.age_seconds) for name, entry in heard.items()} == {"b": ("boot-b", 1.0)}


def test_the_newest_wins_between_processes() -> None:
    table = _table()
    _put(table, 1, now=10.0, percent=1)
    own = table.latest()["n1"]
    newer = msgspec.structs.replace(own, received_at=own.received_at + 5, utilisation_percent=(2, 2))
    other = msgspec.structs.replace(own, node="n2")
    table.replace_foreign({"n1": newer, "n2": other})
    assert table.latest() == {"n1": newer, "n2": other}
    _put(table, 2, now=16.0, percent=3)
    assert table.latest()["n1"].utilisation_percent == (3, None)


def test_view_survives_the_way_through_redis() -> None:
    table = _table()
    _put(table, 1)
    view = table.latest()["n1"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=SampleView) == view


def test_reading_outside_a_loop_reads_the_own_table() -> None:
    assert isinstance(read_latest(), dict)


@given(st.lists(st.tuples(st.sampled_from(["b1", "b2", "b3"]), st.integers(0, 20), st.integers(0, 100)), max_size=40))
def test_within_a_boot_only_growing_sequences_are_taken(frames: list[tuple[str, int, int]]) -> None:
    """NODE-2 whatever arrives in whatever order, the frames taken of one boot in a row only grow."""
    table = SampleTable()
    taken: list[tuple[str, int]] = []
    for now, (boot, seq, time) in enumerate(frames):
        if table.advance("n", boot=boot, seq=seq, time=float(time), now=float(now)) is FrameResult.NEW:
            taken.append((boot, seq))
    for (boot, seq), (next_boot, next_seq) in itertools.pairwise(taken):
        assert boot != next_boot or next_seq > seq


def _details(seq: int, *, boot: str = "b1", count: int = 2, devices: list[str] | None = None) -> Details:
    return Details(boot, seq, 1.0, [DeviceDetails(ecc_corrected=seq + place) for place in range(count)], devices)


def test_details_are_kept_by_device() -> None:
    """NODE-1 the newest of each GPU; a frame of the wrong length, or of nobody's order, is not used."""
    table = _table()
    assert table.put_details("n1", _details(1), now=1.0, received_at=1001.0) == (FrameResult.NEW, 0)
    assert table.put_details("n1", _details(1), now=1.0, received_at=1001.0) == (FrameResult.OLD, 0)
    found = table.details("n1")
    assert found is not None
    assert (found.of("GPU-1"), found.of("GPU-9"), found.received_at) == (DeviceDetails(ecc_corrected=2), None, 1001.0)
    with pytest.raises(BadFrame, match="details of 3 devices"):
        table.put_details("n1", _details(2, count=3), now=1.0, received_at=1001.0)
    assert table.put_details("n1", _details(3, boot="b2"), now=99.0, received_at=1099.0)[0] is FrameResult.NO_ORDER
    assert table.put_details("n9", _details(3, devices=["A", "B"]), now=1.0, received_at=1.0)[0] is FrameResult.NEW
    assert table.details("n8") is None
    assert table.take_changed_details(most=9).keys() == {"n1", "n9"}
    assert table.take_changed_details(most=9) == {}
    table.put_back_details(["n1"])
    assert table.take_changed_details(most=9).keys() == {"n1"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=DetailsView) == found


def test_details_are_passed_on_a_part_at_a_time() -> None:
    """NODE-2 after a restart all agents tell at once; each node's turn comes, also without anything new."""
    table = SampleTable()
    for number in range(10):
        table.put_details(f"n{number}", _details(1, devices=["A", "B"]), now=1.0, received_at=1.0)
    first, second = table.take_changed_details(most=7), table.take_changed_details(most=7)
    assert (len(first), len(second), len(first | second)) == (7, 3, 10)
    again: set[str] = set()
    for part in range(4):
        table.mark_details(part=part, parts=4)
        again |= table.take_changed_details(most=10).keys()
    assert again == first.keys() | second.keys()


@pytest.mark.parametrize("count", [-1, 2**64 - 1, 2**53 + 1, 1.5, float("nan"), float("inf")])
def test_counts_that_are_none_are_unknown(count: float) -> None:
    """NODE-1 one absurd counter hides nothing else, and is counted."""
    table = _table()
    links = [LinkDetails(0, True, "switch", count, 1, 2)]
    processes = [ProcessDetails(count, "no pid"), ProcessDetails(7, "", count)]
    frame = Details("b1", 1, 1.0, [DeviceDetails(links, count, 3, processes), DeviceDetails()])
    received = decode(encode(frame))
    assert isinstance(received, Details)
    assert table.put_details("n1", received, now=1.0, received_at=1.0) == (FrameResult.NEW, 4)
    found = table.details("n1")
    assert found is not None
    assert found.of("GPU-0") == DeviceDetails(
        [LinkDetails(0, True, "switch", None, 1, 2)], None, 3, [ProcessDetails(7, "", None)]
    )
