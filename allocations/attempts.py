"""Which attempt of kube-scheduler a hold belongs to, and whether an object of the cluster shows its failure (LEASE-3).

Filter stores the attempt in the hold's row; the watches and comparisons judge objects by it. Pure: neither a clock nor
the database. What kube-scheduler writes when an attempt fails after filter:

- an event FailedScheduling, whose `involvedObject.resourceVersion` is that of the pod as filter was sent it. A second
  failure at the same version makes it a series; further ones are not written;
- the pod's condition PodScheduled=False, rewritten only where its text changes. `lastTransitionTime` stays while the
  status does.

Invariants: no two clocks are compared; a hold is kept where the object may be about an earlier attempt, and expires at
the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from hashlib import blake2s
from typing import Final

import msgspec

from kube.objects import Condition, Pod

_NO_NODE: Final = re.compile(r"^0/(\d+) nodes are available")
LONGEST_VERSION: Final = 64
_FAILURES_COUNTED: Final = 2
"""Failures of one pod version that the event counts at once; further ones half an hour late."""


class Attempt(msgspec.Struct, frozen=True):
    """`version`: resourceVersion of the pod as filter saw it; `failure`: digest of the failure in it, if any."""

    version: str = ""
    failure: str = ""


UNKNOWN: Final = Attempt()
"""Of holds that no scheduler's filter made, or whose pod has no version: they end when they expire."""


class Verdict(Enum):
    """What an object says about the attempt that a hold belongs to."""

    NOTHING = auto()
    EARLIER = auto()
    """A failure, which may be that of an earlier attempt."""
    FAILED = auto()


class HoldRecord(msgspec.Struct, frozen=True):
    """The attempt in the row of a hold (`allocations.models.Allocation`)."""

    attempt: Attempt
    number: int = 0
    owed: bool = False
    credited: bool = False


class EarlierAttempts(msgspec.Struct, frozen=True):
    """The pod's earlier attempts.

    `holds`: attempt and number of each earlier hold. `unaccounted`: failure digests of those that ended without a
    failure that was seen. `refusals`: the reasons for which the extender refused the pod last.
    """

    holds: tuple[tuple[Attempt, int], ...] = ()
    unaccounted: frozenset[str] = frozenset()
    refusals: tuple[str, ...] = ()


def attempt_of(pod: Pod) -> Attempt:
    """The attempt for which a scheduler sends this pod. A version longer than Kubernetes makes counts as none."""
    version = pod.metadata.resource_version
    return Attempt(version if len(version) <= LONGEST_VERSION else "", failure_digest(pod))


def refused_condition(pod: Pod) -> Condition | None:
    """The condition PodScheduled=False, which says that the pod's last attempt failed."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition
    return None


def failure_digest(pod: Pod) -> str:
    """32 characters of the pod's last failed attempt, empty where it shows none."""
    condition = refused_condition(pod)
    if condition is None:
        return ""
    text = "\n".join((condition.reason or "", condition.message or "", condition.last_transition_time or ""))
    return blake2s(text.encode(), digest_size=16).hexdigest()


def is_newer(version: str, than: str) -> bool:
    """Whether a pod of this resourceVersion may be newer: numbers grow, other text can only differ."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def verdict_of_pod(held: HoldRecord, pod: Pod, before: EarlierAttempts) -> Verdict:
    """What the pod's condition says about the hold's attempt."""
    failure = failure_digest(pod)
    if not failure or failure == held.attempt.failure:
        return Verdict.NOTHING
    if not held.attempt.version or not is_newer(pod.metadata.resource_version, held.attempt.version):
        return Verdict.NOTHING
    condition = refused_condition(pod)
    message = (condition.message if condition is not None else None) or ""
    owed = held.owed or held.attempt.failure in before.unaccounted or found_no_node(message, before.refusals)
    return Verdict.EARLIER if owed and not held.credited else Verdict.FAILED


def verdict_of_event(held: HoldRecord, *, version: str, note: str, times: int, before: EarlierAttempts) -> Verdict:
    """What an event FailedScheduling says about it. `version`: of its pod; `times`: above 1 for a series."""
    if not version or version != held.attempt.version or times > _FAILURES_COUNTED:
        return Verdict.NOTHING
    if found_no_node(note, before.refusals):
        return Verdict.EARLIER
    earlier = held.number + sum(number + 1 for attempt, number in before.holds if attempt.version == version)
    return Verdict.FAILED if times > earlier else Verdict.EARLIER


def found_no_node(message: str, refusals: Iterable[str] = ()) -> bool:
    """Whether the message is of an attempt in which no node was left, so not one for which filter found one.

    Failures after filter name one node. On a cluster of one node only the extender's own reasons distinguish them.
    """
    nodes = _NO_NODE.match(message)
    return nodes is not None and (int(nodes[1]) > 1 or any(reason in message for reason in refusals))
