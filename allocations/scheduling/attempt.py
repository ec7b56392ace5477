"""One attempt at binding or releasing, and the outcomes of its steps.

Used by the steps and by `binder`, which takes an attempt through them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from allocations.backends import Backends
from allocations.choices import State
from allocations.errors import MovedOn
from allocations.leases.port import Want
from allocations.ledger import Live, read_live
from allocations.scheduling import limits
from allocations.scheduling.bindings import leases_needed
from kube.client import Cluster
from storage.clock import RunningClock

if TYPE_CHECKING:
    from allocations.ledger.groups import Group
    from allocations.scheduling.reservation_pods.pod_watch import PodReport

COLLECTOR: Final = "collector"
"""The actor of garbage collection."""


class BindFailed(Exception):
    """The attempt failed, and everything it took is given back. The text says why."""


class OutcomeOpen(Exception):
    """Whether the pod was bound is unknown: the reservation stays, and whoever takes it up sends again."""


class StepResult(Enum):
    """How a step ended for one attempt."""

    DONE = auto()
    AGAIN = auto()
    """Send again, after a check that the attempt was not overtaken."""
    WAIT_AGAIN = auto()
    """Wait for the reservation pods again: another bind is in the way."""
    OPEN = auto()
    """The attempt ends, and everything stays as it is for whoever takes it up."""
    FAILED = auto()
    """The attempt ends, and what was done is undone."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """`error`: what an attempt that ends raises."""

    result: StepResult
    error: Exception | None = None

    @classmethod
    def open(cls, why: str | Exception) -> StepOutcome:
        """OPEN; a text is raised as OutcomeOpen."""
        return cls(StepResult.OPEN, OutcomeOpen(why) if isinstance(why, str) else why)

    @classmethod
    def failed(cls, why: str | Exception) -> StepOutcome:
        """FAILED; a text is raised as BindFailed."""
        return cls(StepResult.FAILED, BindFailed(why) if isinstance(why, str) else why)


DONE: Final = StepOutcome(StepResult.DONE)
AGAIN: Final = StepOutcome(StepResult.AGAIN)
WAIT_AGAIN: Final = StepOutcome(StepResult.WAIT_AGAIN)


_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _clocks() -> tuple[float, float]:
    """Seconds by the machine's clock, which goes on while it is suspended, and by the wall clock."""
    return time.clock_gettime(_BOOTTIME), time.time()


@dataclass(slots=True)
class FinalState:
    """How an allocation ends: its last state, and why."""

    state: State
    reason: str


@dataclass(slots=True)
class Attempt:
    """One attempt. `clock`: the database's, since it began.

    `resumed`: an earlier attempt had the reservation, and its Binding may still be applied. `sent`: a Binding was sent;
    `unknown`: it may still be applied. `bound`: the pod, as read, is bound by this reservation. `refusal`: why no
    Binding of this attempt can succeed; those under way are shut out before it is given up. `ending`: how it is undone,
    or released.
    """

    live: Live
    backends: Backends
    clock: RunningClock
    actor: str
    sources: tuple[State, ...] = (State.RESERVED,)
    """States from which it may be released."""
    reserved: bool = False
    """The reservation is this attempt's already."""
    resumed: bool = False
    unknown: bool = False
    sent: bool = False
    bound: bool = False
    conflicts: int = 0
    shut_outs: int = 0
    refusal: Exception | None = None
    ending: FinalState | None = None
    groups: tuple[Group, ...] = ()
    """The groups of its GPUs (`allocations.scheduling.reservation_pods`)."""
    pod_uids: dict[Group, str] = field(default_factory=dict)
    """The UIDs of their reservation pods."""
    reports: dict[Group, PodReport] = field(default_factory=dict)
    """What those pods said."""
    left: list[tuple[str, Want]] = field(default_factory=list)
    """Leases of others, by holder identity, of GPUs that turned out to be the attempt's."""
    busy: bool = False
    """Another bind is in the way of a group."""
    ended: tuple[Group, ...] = ()
    """Groups that lost their last holder with the attempt."""
    deadline: float | None = None
    """No Binding is sent later, on the monotonic clock. For collection it is set by the first sending, so that slow
    leases do not use it up.
    """
    pod_version: str = field(init=False)
    checked_at: tuple[float, float] = field(default_factory=_clocks)
    """When the attempt was last known not to be overtaken."""

    def __post_init__(self) -> None:
        self.pod_version = self.live.pod_version
        if not self.collecting:
            seconds = limits.reservation_seconds() if self.live.by_reservation_pods else 0
            self.deadline = self.clock.began + limits.BIND_DEADLINE.total_seconds() + seconds

    @property
    def collecting(self) -> bool:
        """Whether garbage collection makes the attempt."""
        return self.actor == COLLECTOR

    @property
    def wants(self) -> list[Want]:
        """The leases of the attempt."""
        return leases_needed(self.live)

    @property
    def now(self) -> datetime:
        """The time by the database's clock."""
        return self.clock.now

    @property
    def cluster(self) -> Cluster | None:
        """Where the pod is to be bound; None where there is no pod or no cluster."""
        return self.backends.cluster if self.live.holder.pod_uid else None

    @property
    def stood_still(self) -> bool:
        """Whether the check is too old, because the process was stopped, say."""
        return any(now - then > limits.LOOK_SECONDS for now, then in zip(_clocks(), self.checked_at, strict=True))

    @property
    def out_of_time(self) -> bool:
        """Whether no Binding is sent any more."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def read_again(self) -> None:
        """Read the devices again, which may have been moved. Raises MovedOn where the reservation has gone."""
        live = read_live(self.live.id)
        if live is None or live.state is not State.RESERVED:
            raise MovedOn("the reservation was settled meanwhile")
        self.live = replace(live, bind_attempt=self.live.bind_attempt)

    def reserved_as(self, number: int) -> None:
        """The reservation is the attempt's, under this number."""
        self.live = self.live.taken_up(number)
        self.note_checked()

    def note_checked(self) -> None:
        """Note that the attempt was not overtaken by now."""
        self.checked_at = _clocks()
