"""Frames between agents and gpuplane: what decodes, what is refused, what is unknown."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import protocol
from agent.protocol import (
    BOUNDS,
    COLUMNS,
    FRAME_LIMIT,
    Ack,
    BadFrame,
    Checkpoint,
    CheckpointEntry,
    CleanSample,
    Details,
    DeviceDetails,
    FrameError,
    FrameTooLarge,
    Health,
    Hello,
    Inventory,
    LinkDetails,
    MigDetails,
    ProcessDetails,
    Sample,
    decode,
    decode_ack,
    decode_received,
    encode,
    sample_of,
    values_of,
)
from agent.sources.nvml_details import NAME_MOST, PROCESSES_MOST

PAGE = Path(__file__).resolve().parents[3] / "docs" / "agent-protocol.md"
EXAMPLES: list[protocol.Frame] = [
    Sample(
        "5f0c9a17",
        7,
        1767225600.5,
        [97, None],
        [71940702208, 503316480],
        [68, 31],
        [612, 74],
        [215000000000, 0],
        [213000000000, 0],
        sm_clock_mhz=[1980, 345],
        nvlinks_down=[0, 1],
    ),
    Hello("5f0c9a17", 1, 1767225600.0, "gpu-a-001", "1.0", ["GPU-0a", "GPU-0b"]),
    Ack("5f0c9a17", 1, 1767225600.0),
]

FULL = DeviceDetails(
    [LinkDetails(number, True, "GPU-" + "e" * 36, 10**6, 10**6, 10**6) for number in range(18)],
    10**6,
    3,
    [ProcessDetails(pid, "n" * NAME_MOST, 80 * 2**30) for pid in range(4_000_000, 4_000_000 + PROCESSES_MOST)],
    [MigDetails("MIG-" + "e" * 36, "1g.10gb", 10 * 2**30)] * 7,
)


def _documented() -> list[bytes]:
    """The bytes of the page's examples: the hex before the wide gap of each line."""
    blocks = re.findall(r"```\n((?:9[0-9a-f]|dc) .*?)```", PAGE.read_text(), re.DOTALL)
    return [
        bytes.fromhex("".join(re.split(r" {4,}", f"{line.strip()}    ")[0] for line in block.splitlines()))
        for block in blocks
    ]


def test_page_shows_the_bytes_that_travel() -> None:
    """NODE-2 the worked examples of docs/agent-protocol.md are what the code sends and understands."""
    assert _documented() == [encode(frame) for frame in EXAMPLES]
    assert [decode(body) for body in _documented()[:2]] == EXAMPLES[:2]
    assert decode_ack(_documented()[2]) == EXAMPLES[2]


def test_page_names_every_column_and_bound() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in COLUMNS)
    assert f"{FRAME_LIMIT:,}" in text
    assert set(BOUNDS) == set(COLUMNS)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Hello("b", 0, 0.0, "n"), id="hello with nothing optional"),
        pytest.param(Inventory("b", 1, 1.5, {"name": "n", "devices": [], "links": []}), id="inventory"),
        pytest.param(Sample("b", 2, 2.5), id="sample that knows nothing"),
        pytest.param(Details("b", 3, 3.5, [FULL, DeviceDetails()], ["GPU-1", "GPU-2"]), id="details"),
        pytest.param(Health("b", 3, 3.5, {"GPU-1": "Xid 79", "GPU-2": ""}), id="health"),
        pytest.param(
            Checkpoint("b", 4, 4.5, [CheckpointEntry("uid", "main", "nvidia.com/gpu", ["GPU-1"])]), id="checkpoint"
        ),
    ],
)
def test_frame_survives_the_way(frame: protocol.AgentFrame) -> None:
    assert decode(encode(frame)) == frame


def test_sample_of_eight_gpus_is_small() -> None:
    column: list[int | float | None] = [10**11] * 8
    clocks: list[int | float | None] = [2_000] * 8
    frame = sample_of(
        ("0123456789abcdef", 10**9, 1767225600.5), dict.fromkeys(COLUMNS, column) | dict.fromkeys(COLUMNS[-6:], clocks)
    )
    assert len(encode(frame)) <= 780


def test_details_of_a_crowded_node_fit_into_a_frame() -> None:
    """NODE-2 what an agent sends of 64 GPUs, each with all that it may tell, is below the limit."""
    assert len(encode(Details("0123456789abcdef", 10**9, 1767225600.5, [FULL] * 64))) < FRAME_LIMIT


def test_older_sender_and_newer_sender_are_understood() -> None:
    short = msgspec.msgpack.encode(["hello", "b", 1, 1.0, "n"])
    long = msgspec.msgpack.encode(["hello", "b", 1, 1.0, "n", "2", ["GPU-1"], "of a later version"])
    assert decode(short) == Hello("b", 1, 1.0, "n")
    assert decode(long) == Hello("b", 1, 1.0, "n", "2", ["GPU-1"])


def _sample(name: str, column: list[int | float | None]) -> Sample:
    return msgspec.structs.replace(Sample("b", 1, 1.0), **{name: column})


def _packed(*fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="a byte MessagePack does not use"),
        pytest.param(b"{}", id="JSON"),
        pytest.param(encode(EXAMPLES[0])[:-3], id="cut short"),
        pytest.param(encode(EXAMPLES[0]) + b"\x01", id="something behind it"),
        pytest.param(b"\x91" * 60_000, id="an array in an array in an array"),
        pytest.param(_packed("inventory", "b", 1, 1.0)[:-1] + b"\x00", id="a field that is no map"),
        pytest.param(_packed("inventory", "b", 1, 1.0, None)[:-1] + b"\x81\xa1a" + b"\x91" * 60_000, id="a deep map"),
        pytest.param(msgspec.msgpack.encode({"kind": "hello"}), id="a map"),
        pytest.param(_packed("ack", "b", 1, 1.0), id="the server's own kind"),
        pytest.param(_packed("sampel", "b", 1, 1.0), id="an unknown kind"),
        pytest.param(_packed("details", "b", 1, 1.0, [[[[0, "up"]]]]), id="a link that is neither up nor down"),
        pytest.param(_packed("details", "b", 1, 1.0, [[[[64, True]]]]), id="a link beyond all numbers"),
        pytest.param(_packed("details", "b", 1, 1.0, [[[], "many"]]), id="errors that are no number"),
        pytest.param(_packed("hello", "b\0", 1, 1.0, "n"), id="a boot that no database takes"),
        pytest.param(_packed("health", "b", 1, 1.0, {"GPU-1": "Xid\0"}), id="a reason that no database takes"),
        pytest.param(_packed("health", "b", 1, 1.0, {"GPU-1\n": ""}), id="a UUID of two lines"),
        pytest.param(
            _packed("checkpoint", "b", 1, 1.0, [["p\0", "c", "r", ["GPU-1"]]]), id="a pod that no database takes"
        ),
        pytest.param(_packed("details", "b", 1, 1.0, [[[], 0, 0, [[1]] * 257]]), id="too many processes"),
        pytest.param(_packed("details", "b", 1, 1.0, [[]] * 65), id="details of too many devices"),
        pytest.param(_packed("sample", "", 1, 1.0), id="no boot"),
        pytest.param(_packed("sample", "b" * 65, 1, 1.0), id="a long boot"),
        pytest.param(_packed("sample", "b", -1, 1.0), id="a negative sequence"),
        pytest.param(_packed("sample", "b", 2**63, 1.0), id="a sequence that is too large"),
        pytest.param(_packed("sample", "b", True, 1.0), id="a sequence that is a truth value"),
        pytest.param(_packed("sample", "b", 1, math.nan), id="a time that is no number"),
        pytest.param(_packed("sample", "b", 1, math.inf), id="a time without end"),
        pytest.param(_packed("sample", "b", 1, "now"), id="a time in words"),
        pytest.param(_packed("sample", "b", 1, 1.0, ["97"]), id="a value in words"),
        pytest.param(_packed("sample", "b", 1, 1.0, [0] * 65), id="too many devices"),
        pytest.param(_packed("hello", "b", 1, 1.0, "n", "1", ["x" * 129]), id="a long UUID"),
        pytest.param(_packed("health", "b", 1, 1.0, {"GPU-1": "x" * 201}), id="a long reason"),
        pytest.param(_packed("checkpoint", "b", 1, 1.0, [["u", "c", "r", []]] * 1025), id="too many entries"),
    ],
)
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(body)


@pytest.mark.parametrize(
    ("column", "want_clean"),
    [
        pytest.param([], True, id="not measured at all"),
        pytest.param([0, 100, None], True, id="whole numbers and unknown"),
        pytest.param([0, 100.0, None], False, id="a fraction"),
        pytest.param([101, 3, None], False, id="out of bounds"),
        pytest.param([math.nan, 3, None], False, id="no number"),
    ],
)
def test_sample_that_needs_no_cleaning_is_recognised_and_means_the_same(
    column: list[int | float | None], *, want_clean: bool
) -> None:
    body = encode(_sample("utilisation_percent", column))
    quickly, thoroughly = decode_received(body), decode(body)
    assert isinstance(quickly, Sample)
    assert isinstance(thoroughly, Sample)
    assert isinstance(quickly, CleanSample) is want_clean
    values, unreadable = values_of(quickly, count=3)
    assert (values, unreadable) == values_of(thoroughly, count=3)
    if column:
        with pytest.raises(BadFrame):
            values_of(quickly, count=2)


@pytest.mark.parametrize("frame", EXAMPLES[:2])
def test_other_frames_are_received_as_they_are_decoded(frame: protocol.AgentFrame) -> None:
    short = msgspec.msgpack.encode(["hello", "b", 1, 1.0, "n"])
    assert encode(decode_received(encode(frame))) == encode(frame)
    assert decode_received(short) == decode(short)


def test_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(FrameTooLarge):
        decode(b"\x00" * (FRAME_LIMIT + 1))
    with pytest.raises(FrameTooLarge):
        decode_received(b"\x00" * (FRAME_LIMIT + 1))
    with pytest.raises(FrameTooLarge):
        decode_ack(b"\x00" * (FRAME_LIMIT + 1))


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_frame_error(body: bytes) -> None:
    for read in (decode, decode_received, decode_ack):
        with contextlib.suppress(FrameError):
            read(body)


@pytest.mark.parametrize(
    ("name", "given_value", "want", "want_unreadable"),
    [
        pytest.param("utilisation_percent", None, None, 0, id="unknown stays unknown"),
        pytest.param("utilisation_percent", 0, 0, 0, id="zero is known"),
        pytest.param("utilisation_percent", 97.4, 97, 0, id="fractions are rounded"),
        pytest.param("utilisation_percent", 101, 100, 1, id="a driver's rounding is cut"),
        pytest.param("utilisation_percent", 4000, None, 1, id="an absurd utilisation is unknown"),
        pytest.param("power_watts", math.nan, None, 1, id="NaN is unknown"),
        pytest.param("power_watts", math.inf, None, 1, id="infinity is unknown"),
        pytest.param("power_watts", -1, None, 1, id="negative power is unknown"),
        pytest.param("temperature_celsius", -20, -20, 0, id="a cold hall is fine"),
        pytest.param("temperature_celsius", 5000, None, 1, id="hotter than the sun is unknown"),
        pytest.param("memory_used_bytes", 2**63 - 1, None, 1, id="more memory than any GPU has"),
        pytest.param("nvlink_tx_bytes", 450e9, 450_000_000_000, 0, id="full NVLink traffic"),
    ],
)
def test_values(name: str, given_value: float | None, want: int | None, want_unreadable: int) -> None:
    """NODE-1 what a GPU does not say is unknown, never zero."""
    columns, unreadable = values_of(_sample(name, [given_value]), count=1)
    assert columns[name] == (want,)
    assert unreadable == want_unreadable
    assert all(columns[other] == (None,) for other in COLUMNS if other != name)


def test_column_of_another_length_is_refused() -> None:
    with pytest.raises(BadFrame, match="power_watts has 2 values for 3 devices"):
        values_of(Sample("b", 1, 1.0, power_watts=[1, 2]), count=3)


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(), min_size=1, max_size=8),
    st.sampled_from(COLUMNS),
)
def test_values_are_in_bounds_or_unknown(column: list[int | float | None], name: str) -> None:
    columns, unreadable = values_of(_sample(name, column), count=len(column))
    low, high = BOUNDS[name]
    assert all(value is None or low <= value <= high for value in columns[name])
    assert unreadable >= sum(value is None for value in columns[name]) - sum(value is None for value in column)
