"""One attempt at binding or releasing, and the outcomes of its steps.

Used by the steps and by `binder`, which takes an attempt through them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Final

from allocations.backends import Backends
from allocations.choices import State
from allocations.leases.port import Want
from allocations.ledger import Live
from allocations.scheduling import limits
from allocations.scheduling.bindings import leases_needed
from kube.client import Cluster
from storage.clock import RunningClock

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
    world: Backends
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
            self.deadline = self.clock.began + limits.BIND_DEADLINE.total_seconds()

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
        return self.world.cluster if self.live.holder.pod_uid else None

    @property
    def stood_still(self) -> bool:
        """Whether the check is too old, because the process was stopped, say."""
        return any(now - then > limits.LOOK_SECONDS for now, then in zip(_clocks(), self.checked_at, strict=True))

    def reserved_as(self, number: int) -> None:
        """The reservation is the attempt's, under this number."""
        self.live = self.live.taken_up(number)
        self.note_checked()

    def note_checked(self) -> None:
        """Note that the attempt was not overtaken by now."""
        self.checked_at = _clocks()
