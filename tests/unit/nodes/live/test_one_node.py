"""What a browser that looks at one node, or one device, is told: what changed, and no more."""

from __future__ import annotations

from typing import Any

import msgspec

from agent.protocol import COLUMNS, DeviceDetails, LinkDetails, MigDetails, ProcessDetails
from nodes.live.one_node import NodeStream
from nodes.live.samples import OLD_SECONDS, DetailsView, SampleView

NOW = 1_800_000_000.0
DETAILS = DetailsView(
    "n1",
    NOW,
    ("GPU-0", "GPU-1"),
    (
        DeviceDetails([LinkDetails(0, False, "switch", 7, 0, 0)], 12, 1, [ProcessDetails(4711, "secret")]),
        DeviceDetails(migs=[MigDetails("MIG-1", "1g.10gb", 10)]),
    ),
)


def sample(
    at: float = NOW, *, order: tuple[str, ...] = ("GPU-0", "GPU-1"), **columns: tuple[int | None, ...]
) -> SampleView:
    unknown = (None,) * len(order)
    return SampleView("n1", "b", 1, at, at, order, **{name: columns.get(name, unknown) for name in COLUMNS})


def heard(
    teller: NodeStream, view: SampleView | None, details: DetailsView | None = None, *, now: float = NOW
) -> list[Any]:
    return [msgspec.json.decode(message) for message in teller.next(view, details, now=now)]


def test_what_changed_is_said() -> None:
    """VIEW-1 everything at first, then columns that changed; the same sample twice says nothing."""
    teller = NodeStream()
    (first,) = heard(teller, sample(utilisation_percent=(10, 20)))
    assert first["devices"] == ["GPU-0", "GPU-1"]
    assert first["columns"].keys() == set(COLUMNS)
    assert first["columns"]["utilisation_percent"] == [10, 20]
    assert heard(teller, sample(utilisation_percent=(10, 20))) == []
    (second,) = heard(teller, sample(NOW + 1, utilisation_percent=(10, 21)), now=NOW + 1)
    assert second == {"kind": "now", "time": NOW + 1, "columns": {"utilisation_percent": [10, 21]}}
    (third,) = heard(teller, sample(NOW + 2, order=("GPU-1",), utilisation_percent=(21,)), now=NOW + 2)
    assert (third["devices"], third["columns"]["utilisation_percent"]) == (["GPU-1"], [21])


def test_silence_is_said_now_and_then() -> None:
    """VIEW-1 old figures are not shown as those of now, and a browser can tell silence from a dead connection; heard
    again, everything is said again.
    """
    teller = NodeStream()
    assert heard(teller, None) == [{"kind": "silent", "since": None}]
    assert heard(teller, None, now=NOW + 4) == []
    assert heard(teller, None, now=NOW + 5) == [{"kind": "silent", "since": None}]
    old = sample(utilisation_percent=(1, 2))
    assert [one["kind"] for one in heard(teller, old)] == ["now"]
    assert heard(teller, old, now=NOW + OLD_SECONDS + 1) == [{"kind": "silent", "since": NOW}]
    (again,) = heard(teller, sample(NOW + 20, utilisation_percent=(1, 2)), now=NOW + 20)
    assert again["columns"].keys() == set(COLUMNS)


def test_details_are_said_when_they_change_and_without_processes() -> None:
    """VIEW-1 links and errors are for everybody; who runs what is not."""
    teller = NodeStream()
    _, told = heard(teller, sample(), DETAILS)
    assert told["devices"]["GPU-0"] == {"links": [[0, False, "switch", 7, 0, 0]], "ecc": [12, 1], "migs": []}
    assert told["devices"]["GPU-1"]["migs"] == [["MIG-1", "1g.10gb", 10]]
    assert "secret" not in msgspec.json.encode(told).decode()
    assert heard(teller, sample(NOW + 1), msgspec.structs.replace(DETAILS, received_at=NOW + 1), now=NOW + 1)[1:] == []


def test_one_device() -> None:
    """VIEW-1 a device's page is told of that device, and of none that its node no longer has."""
    teller = NodeStream("GPU-1")
    now, told = heard(teller, sample(utilisation_percent=(10, 20)), DETAILS)
    assert (now["devices"], now["columns"]["utilisation_percent"]) == (["GPU-1"], [20])
    assert told["devices"].keys() == {"GPU-1"}
    (gone,) = heard(teller, sample(NOW + 1, order=("GPU-0",), utilisation_percent=(1,)), now=NOW + 1)
    assert (gone["devices"], gone["columns"]["utilisation_percent"]) == ([], [])


def test_silence_is_repeated_when_the_clock_went_back() -> None:
    """VIEW-1 else the page takes the connection for dead for as long as the clock went back."""
    teller = NodeStream()
    assert heard(teller, None)
    found = [heard(teller, None, now=NOW - 3600 + second) for second in range(30)]
    assert sum(map(len, found)) == 6
