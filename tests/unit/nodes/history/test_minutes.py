"""A minute of the ring as arrays has the figures that its samples have one by one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import BOUNDS, COLUMNS, Values
from nodes.history import ring
from nodes.history.figures import Column, Figures, unit_of
from nodes.history.minutes import figures_of
from nodes.history.ring_seconds import Moment, Second, Unreadable, moments_of, second_of
from nodes.live.samples import SampleView

SINCE, UNTIL = 1_800_000_000.0, 1_800_000_060.0
ORDERS = {"n1": ("GPU-0", "GPU-1"), "n2": ("GPU-2",), "n3": (), "n4": ("GPU-4", "GPU-5", "GPU-6")}
OTHERS = {"n1": ("GPU-1", "GPU-0"), "n2": ("GPU-2", "GPU-9"), "n3": ("GPU-3",), "n4": ("GPU-4",)}
"""Device sets that the nodes had before."""


def checksum(devices: Sequence[str]) -> int:
    return crc32("\n".join(devices).encode())


def value_of(name: str) -> st.SearchStrategy[int | None]:
    low, high = BOUNDS[name]
    return st.one_of(st.none(), st.sampled_from([low, low + 1, high]), st.integers(max(low, 0), min(high, 2**40)))


@st.composite
def samples(draw: st.DrawFn) -> SampleView:
    node = draw(st.sampled_from([*ORDERS, "unknown"]))
    devices = draw(st.sampled_from([ORDERS, ORDERS, OTHERS])).get(node, ("GPU-8",))
    at = draw(st.sampled_from([SINCE - 0.1, SINCE, SINCE + 1, SINCE + 30.5, UNTIL - 0.1, UNTIL]))
    columns: dict[str, Values] = {
        name: draw(st.tuples(*[value_of(name)] * len(devices))) if draw(st.booleans()) else (None,) * len(devices)
        for name in COLUMNS
    }
    return SampleView(node, "boot", 1, at, at, devices, **columns)


def one_by_one(views: Sequence[SampleView], orders: Mapping[str, tuple[str, ...]]) -> dict[str, Figures]:
    """The figures by plain Python."""
    found = {}
    for node, devices in orders.items():
        counted = [
            view
            for view in views
            if view.node == node and view.devices == devices and SINCE <= view.received_at < UNTIL
        ]
        columns = {}
        for name in COLUMNS:
            known = [
                [value for view in counted if (value := getattr(view, name)[place]) is not None]
                for place in range(len(devices))
            ]
            if any(known):
                columns[name] = Column(
                    tuple(map(len, known)),
                    tuple(round(float(sum(some) * unit_of(name)) / max(len(some), 1)) for some in known),
                    tuple(max(some, default=0) for some in known),
                )
        if columns:
            found[node] = Figures(devices, columns)
    return found


def seconds_of(batches: Sequence[Sequence[SampleView]]) -> list[Second]:
    """Through the ring: packed and read again."""
    return [second_of(body) for views in batches for body in ring.pack(views).values()]


@given(st.lists(st.lists(samples(), max_size=6, unique_by=lambda view: view.node), max_size=8))
def test_arrays_have_the_figures_of_the_samples(batches: list[list[SampleView]]) -> None:
    """VIEW-1 whatever is unknown, missing, late, out of order, of other devices or of no node, and whichever bounds
    values lie at.
    """
    orders = {node: (checksum(devices), devices) for node, devices in ORDERS.items()}
    made = figures_of(seconds_of(batches), orders, since=SINCE, until=UNTIL)
    want = one_by_one([view for views in batches for view in views], ORDERS)
    assert made == want


@given(st.lists(samples(), max_size=6, unique_by=lambda view: view.node))
def test_a_sample_is_read_back_as_it_was(views: list[SampleView]) -> None:
    """VIEW-1 every value within its bounds, and what is unknown, in one second of the ring."""
    found = [
        (moment.node, moment.order, moment.received_at, moment.columns)
        for second in seconds_of([views])
        for node in second.nodes
        for moment in moments_of(second, node)
    ]
    want = [(view.node, view.order, view.received_at, tuple(getattr(view, name) for name in COLUMNS)) for view in views]
    assert {*found} == {*want}
    assert len(found) == len(want)


@given(st.lists(samples(), max_size=6, unique_by=lambda view: view.node))
def test_entries_of_the_version_before_are_read(views: list[SampleView]) -> None:
    """VIEW-1 in the middle of an update a minute has the samples of both versions."""
    moments = [
        Moment(view.node, view.order, view.received_at, tuple(getattr(view, name) for name in COLUMNS))
        for view in views
    ]
    before = second_of(zlib.compress(msgspec.msgpack.encode(moments), 1))
    orders = {node: (checksum(devices), devices) for node, devices in ORDERS.items()}
    assert figures_of([before], orders, since=SINCE, until=UNTIL) == one_by_one(views, ORDERS)


def second(**changes: Any) -> bytes:
    whole = Second(["n1"], [1], [SINCE], [1], bytes(second_planes()))
    return msgspec.structs.replace(whole, **changes).packed()


def second_planes() -> bytes:
    view = SampleView("n1", "b", 1, SINCE, SINCE, ("GPU-0",), **dict.fromkeys(COLUMNS, (1,)))
    (body,) = ring.pack([view]).values()
    return second_of(body).planes


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"nonsense", id="not compressed"),
        pytest.param(zlib.compress(b"\xc1"), id="not MessagePack"),
        pytest.param(second(planes=second_planes()[:-1]), id="a plane is short, as with a column less"),
        pytest.param(second(gpus=[2]), id="more GPUs than bytes"),
        pytest.param(
            second(gpus=[2, -1], nodes=["a", "b"], orders=[1, 1], received_at=[1.0, 1.0]), id="negative count"
        ),
        pytest.param(second(orders=[]), id="a node without a checksum"),
        pytest.param(second(received_at=[]), id="a node without a time"),
        pytest.param(
            zlib.compress(msgspec.msgpack.encode([Moment("n1", 1, 1.0, (*[(1,)] * 13, (1, 2)))])), id="ragged columns"
        ),
    ],
)
def test_what_cannot_be_read_is_unreadable(body: bytes) -> None:
    """VIEW-1 another version's bytes, or damaged ones, are passed over as a whole."""
    with pytest.raises(Unreadable):
        second_of(body)
