"""Frames: what is taken, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol import (
    FRAME_LIMIT,
    LINES_CHARACTERS,
    LOG_CHARACTERS,
    MOST_RUNTIMES,
    MOST_SLOTS,
    MOST_SOURCES,
    REASON_CHARACTERS,
    SOURCE_CHARACTERS,
    BadFrame,
    Desired,
    DesiredSlot,
    FrameError,
    FrameTooLarge,
    Gpu,
    Hello,
    LogTail,
    Offer,
    Report,
    RunnerFrame,
    ServerFrame,
    SlotIs,
    SlotReport,
    Welcome,
    decode,
    decode_server,
    decode_slot,
    encode,
    encode_slot,
)

STAMP = ("boot-1", 3, 1767225600.5)
SLOT = DesiredSlot(id="s1", run=True, model="chat", runtime="vllm", gpus=[Gpu(0, "GPU-a", 1, 2)], args=["--x"])


@pytest.mark.parametrize(
    "frame",
    [
        Hello(*STAMP, "n1", "abc", "1", "10.0.0.1"),
        Offer(*STAMP, ["vllm"], ["org/chat"]),
        Report(*STAMP, [SlotReport("s1", "ready", "10.0.0.1:21000", "", "", 77)]),
        LogTail(*STAMP, "s1", "line\nline\n"),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_frames_of_a_runner(frame: Hello | Offer | Report | LogTail) -> None:
    assert decode(encode(frame)) == frame


def test_frames_of_the_server() -> None:
    for frame in (Welcome("b", 1.5), Desired([SLOT], ["s1"])):
        assert decode_server(encode(frame)) == frame
    assert decode_slot(encode_slot(SLOT)) == SLOT


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(["hello", "b", 1, 1.0, "", "abc"], id="no node"),
        pytest.param(["hello", "b", 1, float("nan"), "n1", "abc"], id="no time"),
        pytest.param(["hello", "b", -1, 1.0, "n1", "abc"], id="a number below 0"),
        pytest.param(["hello", "b", 1, 1.0, "n1", "a/b"], id="an instance that is none"),
        pytest.param(["report", "b", 1, 1.0, [["../up", "ready"]]], id="an id with a path"),
        pytest.param(["report", "b", 1, 1.0, [["-s", "ready"]]], id="an id that is an option"),
        pytest.param(["report", "b", 1, 1.0, [["s1", "running"]]], id="an unknown state"),
        pytest.param(["report", "b", 1, 1.0, [["s1", "failed", "", "a\x00b"]]], id="a NUL in a reason"),
        pytest.param(["report", "b", 1, 1.0, [["s1", "failed"]] * (MOST_SLOTS + 1)], id="too many slots"),
        pytest.param(["log", "b", 1, 1.0, "s1", "x" * 20_000], id="too much log"),
        pytest.param(["offer", "b", 1, 1.0, [1]], id="a runtime that is a number"),
        pytest.param(["desired", []], id="a frame of the server"),
        pytest.param({"hello": 1}, id="a map"),
        pytest.param([[[]]], id="no kind"),
    ],
)
def test_what_is_refused(frame: object) -> None:
    with pytest.raises(BadFrame):
        decode(msgspec.msgpack.encode(frame))


@pytest.mark.parametrize(
    "slot",
    [
        pytest.param(["../x", True], id="an id with a path"),
        pytest.param(["s1", True, "m", "vllm", "a\x00b"], id="a NUL in an argument"),
        pytest.param(["s1", True, "m", "vllm", "s", "", [[0, "GPU-a,GPU-b", 1, 1]]], id="two GPUs in one name"),
        pytest.param(["s1", 1], id="run is a number"),
    ],
)
def test_what_a_runner_refuses(slot: object) -> None:
    """What would reach a path, an argument or the environment of a process."""
    with pytest.raises(BadFrame):
        decode_server(msgspec.msgpack.encode(["desired", [slot]]))


def test_long_frames() -> None:
    """The largest report fits, if need be without the last lines; a longer frame is refused by its size."""
    slots = [
        SlotReport(f"s{number}", "failed", "a" * 50, "r" * REASON_CHARACTERS, "é" * LINES_CHARACTERS)
        for number in range(MOST_SLOTS)
    ]
    body = encode(Report(*STAMP, slots))
    assert len(body) <= FRAME_LIMIT
    found = decode(body)
    assert isinstance(found, Report)
    assert {one.lines for one in found.slots} == {""}
    with pytest.raises(FrameTooLarge):
        decode(b"\x00" * (FRAME_LIMIT + 1))


def test_a_long_offer() -> None:
    """SLOT-1c the longest one goes with as many sources as a frame takes, by which its runner stays connected."""
    sources = [f"{number:03}" + "模" * (SOURCE_CHARACTERS - 3) for number in range(MOST_SOURCES)]
    found = decode(encode(Offer(*STAMP, ["vllm"], sources)))
    assert isinstance(found, Offer)
    assert found.runtimes == ["vllm"]
    assert found.sources == sources[: len(found.sources)]
    assert len(found.sources) >= MOST_SOURCES // 2


@given(st.binary(max_size=300))
def test_any_bytes(body: bytes) -> None:
    """Nothing but FrameError comes out."""
    for decoder in (decode, decode_server, decode_slot):
        try:
            decoder(body)
        except FrameError:
            continue


def test_newer_senders() -> None:
    """Fields at the end that are not known are left alone."""
    found = decode(msgspec.msgpack.encode(["report", "b", 1, 1.0, [["s1", "ready", "h:1", "", "", 5, "new"]], "new"]))
    assert isinstance(found, Report)
    assert found.slots[0].pid == 5


PAGE = Path(__file__).resolve().parents[3] / "docs" / "runner-protocol.md"
CHAT = DesiredSlot(
    "k3v9q",
    True,
    "chat",
    "llamacpp",
    "qwen3-8b.gguf",
    "",
    [Gpu(0, "GPU-0a", 8 * 2**30, 80 * 2**30)],
    4,
    8192,
    "q8_0",
    ["--seed", "1"],
)
EXAMPLES: list[RunnerFrame | ServerFrame] = [
    Hello("5f0c9a17", 1, 1767225600.0, "gpu-a-001", "b1946ac92492d2347c6235b4d2611184", "1", "10.0.3.7"),
    Welcome("5f0c9a17", 1767225600.0),
    Report("5f0c9a17", 3, 1767225600.5, [SlotReport("k3v9q", "ready", "10.0.3.7:21004", "", "", 4711)]),
    Desired([CHAT, DesiredSlot("x7d2m", False)]),
]


def test_the_page() -> None:
    """SLOT-1c the examples of docs/runner-protocol.md are what the code sends, and its numbers are the code's."""
    text = PAGE.read_text()
    blocks = re.findall(r"```\n(9[0-9a-f] .*?)```", text, re.DOTALL)
    found = [
        bytes.fromhex("".join(re.split(r" {4,}", f"{line.strip()}    ")[0] for line in block.splitlines()))
        for block in blocks
    ]
    assert found == [encode(frame) for frame in EXAMPLES]
    numbers = (FRAME_LIMIT, LOG_CHARACTERS, MOST_SLOTS, MOST_SOURCES, MOST_RUNTIMES)
    assert all(f"{number:,}" in text for number in numbers)
    assert all(f"`{state}`" in text for state in get_args(SlotIs))
