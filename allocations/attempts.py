"""Which attempt of kube-scheduler a hold belongs to, and which failed attempt an object of the API server tells of (LEASE-3).

Filter notes the attempt in the hold's row; the watches and comparisons judge what they see by it. Pure: neither a clock
nor the database. What kube-scheduler leaves behind when an attempt fails after filter:

- an event FailedScheduling, whose `involvedObject.resourceVersion` is that of the pod as the attempt had it, the very one
  that filter was sent. A second failure at the same version makes it a series; of further ones nothing is written;
- the pod's condition PodScheduled=False, written anew only where its text is another. `lastTransitionTime` stands still
  while the status does.

Invariants: no two clocks are compared; where what is seen may as well be the late word of an earlier attempt, the hold
lives on, and ends by its time at the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from hashlib import blake2s
from typing import Final

import msgspec

from kube.objects import Pod, PodCondition

_NO_NODE: Final = re.compile(r"^0/(\d+) nodes are available")
LONGEST_VERSION: Final = 64
_EVERY_FAILURE_TOLD: Final = 2
"""Failures of one pod version of which the event tells; what is counted beyond comes half an hour late."""


class Attempt(msgspec.Struct, frozen=True):
    """`version`: resourceVersion of the pod as filter saw it. `failure`: digest of the failure that it told of, empty for none."""

    version: str = ""
    failure: str = ""


UNKNOWN: Final = Attempt()
"""No scheduler's attempt, such as the hold that bind makes and goes on with, or one whose pod carries no version: it ends by its time."""


class Verdict(Enum):
    """What an object tells of the attempt that a hold belongs to."""

    NOTHING = auto()
    EARLIER = auto()
    """A failure, which may be that of an attempt before."""
    FAILED = auto()


class Held(msgspec.Struct, frozen=True):
    """What the row of a hold says of its attempt (`allocations.models.Allocation`, the fields of these names)."""

    attempt: Attempt
    number: int = 0
    owed: bool = False
    credited: bool = False


class Before(msgspec.Struct, frozen=True):
    """What is known of the pod's attempts before: `holds` of them, of which `unaccounted` ended without a failure that was seen.

    `refusals`: the reasons for which the extender refused the pod last.
    """

    holds: tuple[tuple[Attempt, int], ...] = ()
    unaccounted: frozenset[str] = frozenset()
    refusals: tuple[str, ...] = ()


def attempt_of(pod: Pod) -> Attempt:
    """The attempt for which a scheduler sends this pod. A version longer than any that Kubernetes makes counts as none."""
    version = pod.metadata.resource_version
    return Attempt(version if len(version) <= LONGEST_VERSION else "", failure_digest(pod))


def refused_condition(pod: Pod) -> PodCondition | None:
    """The condition by which kube-scheduler says that the pod's last attempt failed."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition
    return None


def failure_digest(pod: Pod) -> str:
    """What the pod tells of its last failed attempt, as 32 characters; empty where it tells of none."""
    told = refused_condition(pod)
    if told is None:
        return ""
    text = "\n".join((told.reason or "", told.message or "", told.last_transition_time or ""))
    return blake2s(text.encode(), digest_size=16).hexdigest()


def is_newer(version: str, than: str) -> bool:
    """Whether a pod of this resourceVersion may be newer: they are numbers that grow; other text is only ever equal or not."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def judged_by_pod(held: Held, pod: Pod, before: Before) -> Verdict:
    """What the pod's condition tells of the hold's attempt."""
    failure = failure_digest(pod)
    if not failure or failure == held.attempt.failure:
        return Verdict.NOTHING
    if not held.attempt.version or not is_newer(pod.metadata.resource_version, held.attempt.version):
        return Verdict.NOTHING
    told = refused_condition(pod)
    message = (told.message if told is not None else None) or ""
    owed = held.owed or held.attempt.failure in before.unaccounted or found_no_node(message, before.refusals)
    return Verdict.EARLIER if owed and not held.credited else Verdict.FAILED


def judged_by_event(held: Held, *, version: str, note: str, times: int, before: Before) -> Verdict:
    """What an event FailedScheduling tells of it. `version`: of the pod that it is about; `times`: 1, more for a series."""
    if not version or version != held.attempt.version or times > _EVERY_FAILURE_TOLD:
        return Verdict.NOTHING
    if found_no_node(note, before.refusals):
        return Verdict.EARLIER
    earlier = held.number + sum(number + 1 for attempt, number in before.holds if attempt.version == version)
    return Verdict.FAILED if times > earlier else Verdict.EARLIER


def found_no_node(message: str, refusals: Iterable[str] = ()) -> bool:
    """Whether it tells of an attempt in which no node was left: none for which filter had found one.

    What goes wrong after filter is told of one node. On a cluster of one node it takes our own reason to know.
    """
    nodes = _NO_NODE.match(message)
    return nodes is not None and (int(nodes[1]) > 1 or any(reason in message for reason in refusals))
