"""Which attempt of kube-scheduler what is seen belongs to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from allocations.attempts import (
    UNKNOWN,
    Attempt,
    EarlierAttempts,
    HoldRecord,
    Verdict,
    attempt_of,
    failure_digest,
    found_no_node,
    is_newer,
    verdict_of_event,
    verdict_of_pod,
)
from kube.objects import Pod

FULL = "0/3 nodes are available: 3 Insufficient cpu."


def pod(
    version: str, message: str | None = None, *, status: str = "False", turned: str = "2026-01-01T00:00:00Z"
) -> Pod:
    """A pod at a version; with a message its last attempt failed."""
    told: dict[str, Any] = {"metadata": {"name": "p", "uid": "u", "resourceVersion": version}}
    if message is not None:
        one = {"type": "PodScheduled", "status": status, "message": message, "lastTransitionTime": turned}
        told["status"] = {"conditions": [{"type": "Ready", "status": "False"}, one]}
    return msgspec.convert(told, Pod)


@pytest.mark.parametrize(
    ("version", "than", "want"),
    [
        pytest.param("9", "10", False, id="numbers, not text"),
        pytest.param("10", "9", True, id="a larger number"),
        pytest.param("10", "10", False, id="the same"),
        pytest.param("99999999999999999999", "1", True, id="larger than any integer of the API"),
        pytest.param("b", "a", True, id="no numbers: another one may be newer"),
        pytest.param("a", "a", False, id="no numbers, the same"),
        pytest.param("", "5", True, id="no version is another"),
    ],
)
def test_versions(version: str, than: str, want: bool) -> None:
    """LEASE-3 resourceVersions are compared as numbers, else by being the same or not."""
    assert is_newer(version, than) is want


@pytest.mark.parametrize(
    ("held", "seen", "before", "want"),
    [
        pytest.param(HoldRecord(attempt_of(pod("5"))), pod("6"), EarlierAttempts(), Verdict.NOTHING, id="no failure"),
        pytest.param(
            HoldRecord(attempt_of(pod("5"))),
            pod("6", "x", status="True"),
            EarlierAttempts(),
            Verdict.NOTHING,
            id="scheduled",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5"))), pod("6", "x"), EarlierAttempts(), Verdict.FAILED, id="its failure"
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5"))),
            pod("5", "x"),
            EarlierAttempts(),
            Verdict.NOTHING,
            id="the version that filter saw",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("15"))), pod("6", "x"), EarlierAttempts(), Verdict.NOTHING, id="an older version"
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5", "x"))),
            pod("6", "x"),
            EarlierAttempts(),
            Verdict.NOTHING,
            id="the failure that filter saw",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5", "x"))), pod("6", "y"), EarlierAttempts(), Verdict.FAILED, id="another text"
        ),
        pytest.param(
            HoldRecord(UNKNOWN), pod("6", "x"), EarlierAttempts(), Verdict.NOTHING, id="a hold that bind made"
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5"))),
            pod("6", FULL),
            EarlierAttempts(),
            Verdict.EARLIER,
            id="an attempt that found no node",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5")), owed=True),
            pod("6", "x"),
            EarlierAttempts(),
            Verdict.EARLIER,
            id="owed by the hold before",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5")), owed=True, credited=True),
            pod("6", "x"),
            EarlierAttempts(),
            Verdict.FAILED,
            id="credited once",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5"))),
            pod("6", "x"),
            EarlierAttempts(unaccounted=frozenset({""})),
            Verdict.EARLIER,
            id="owed by another row",
        ),
        pytest.param(
            HoldRecord(attempt_of(pod("5", "x"))),
            pod("6", "y"),
            EarlierAttempts(unaccounted=frozenset({""})),
            Verdict.FAILED,
            id="that one was told of since",
        ),
    ],
)
def test_verdict_by_the_pod(held: HoldRecord, seen: Pod, before: EarlierAttempts, want: Verdict) -> None:
    """LEASE-3 by version and text, never by time."""
    assert verdict_of_pod(held, seen, before) is want


SAME = ((Attempt("5"), 0),)


@pytest.mark.parametrize(
    ("held", "version", "note", "times", "before", "want"),
    [
        pytest.param(
            HoldRecord(Attempt("5")),
            "5",
            "x",
            1,
            EarlierAttempts(),
            Verdict.FAILED,
            id="about the version that filter saw",
        ),
        pytest.param(HoldRecord(Attempt("5")), "4", "x", 1, EarlierAttempts(), Verdict.NOTHING, id="about another"),
        pytest.param(HoldRecord(UNKNOWN), "", "x", 1, EarlierAttempts(), Verdict.NOTHING, id="no versions at all"),
        pytest.param(
            HoldRecord(Attempt("5")),
            "5",
            FULL,
            1,
            EarlierAttempts(),
            Verdict.EARLIER,
            id="of an attempt that found no node",
        ),
        pytest.param(
            HoldRecord(Attempt("5"), number=1),
            "5",
            "x",
            1,
            EarlierAttempts(),
            Verdict.EARLIER,
            id="the hold's attempt before, at the same version",
        ),
        pytest.param(
            HoldRecord(Attempt("5"), number=1), "5", "x", 2, EarlierAttempts(), Verdict.FAILED, id="the second one"
        ),
        pytest.param(
            HoldRecord(Attempt("5")),
            "5",
            "x",
            1,
            EarlierAttempts(holds=SAME),
            Verdict.EARLIER,
            id="another hold's, at the same version",
        ),
        pytest.param(
            HoldRecord(Attempt("5")),
            "5",
            "x",
            2,
            EarlierAttempts(holds=SAME),
            Verdict.FAILED,
            id="the second, after another hold",
        ),
        pytest.param(
            HoldRecord(Attempt("5")),
            "5",
            "x",
            7,
            EarlierAttempts(),
            Verdict.NOTHING,
            id="a count that comes half an hour later",
        ),
    ],
)
def test_verdict_by_an_event(
    held: HoldRecord, version: str, note: str, times: int, before: EarlierAttempts, want: Verdict
) -> None:
    """LEASE-3 a version's failures are counted as far as kube-scheduler writes them."""
    assert verdict_of_event(held, version=version, note=note, times=times, before=before) is want


def test_failures_are_distinguished() -> None:
    """LEASE-3 by text and moment of the condition, on one and the same clock."""
    seen = [pod("1", "a"), pod("2", "b"), pod("3", "a", turned="2026-01-01T00:00:01Z"), pod("4")]
    digests = [failure_digest(one) for one in seen]
    assert len(set(digests)) == 4
    assert [len(one) for one in digests] == [32, 32, 32, 0]
    assert failure_digest(pod("9", "a")) == digests[0]
    assert attempt_of(pod("v" * 65)).version == ""


@pytest.mark.parametrize(
    ("message", "reasons", "want"),
    [
        pytest.param(FULL, (), True, id="three nodes, none left"),
        pytest.param(
            "0/1 nodes are available: 1 node(s) had a volume conflict.", (), False, id="the node that was chosen"
        ),
        pytest.param(
            "0/1 nodes are available: 1 no whole gpu device free.",
            ("no whole gpu device free",),
            True,
            id="our own reason, on one node",
        ),
        pytest.param("running PreBind plugin: time is over", ("time",), False, id="after a node was chosen"),
    ],
)
def test_an_attempt_without_a_node(message: str, reasons: tuple[str, ...], want: bool) -> None:
    """LEASE-3 it is none for which filter had found devices."""
    assert found_no_node(message, reasons) is want
