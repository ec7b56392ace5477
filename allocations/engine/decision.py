"""What the engine answers, as values: devices, and why other nodes cannot serve.

Read by the ledger (grants), the extender (JSON), explain and the what-if page.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allocations.engine.amounts import Held
    from claims.dialects.request import DeviceRequest


class Grant(msgspec.Struct, frozen=True):
    """One device, or a share of it, given to a request. Memory in bytes, None where the type has none."""

    device_id: int
    uuid: str
    type: str
    minor: int
    core_percent: int
    memory_bytes: int | None
    whole: bool


class ReasonKind(StrEnum):
    """The kinds of reasons, to count by: few, whatever numbers a text has."""

    NODE = "node-not-ready"
    MODE = "node-mode"
    NO_DEVICE = "no-such-device"
    MODEL = "model"
    TOO_FEW = "too-few-devices"
    SICK = "unhealthy"
    MIG = "mig-mode"
    CLOSED = "closed"
    RESERVED = "reservation-pod"
    PUT_OFF = "no-new-group"
    TOO_SMALL = "too-small"
    NUMA = "numa"
    ISLAND = "island"
    SWITCH = "pcie-switch"
    SEVERAL = "containers"
    WHOLE_TAKEN = "no-whole-device-free"
    SHARE_TAKEN = "no-share-free"
    ISLAND_TAKEN = "no-island-free"
    SWITCH_TAKEN = "no-pcie-switch-free"
    SEVERAL_TAKEN = "no-room-for-all-containers"


class Reason(msgspec.Struct, frozen=True):
    """Why a node cannot serve, or a pod cannot be placed. `resolvable`: removing lower-priority pods could help.

    `kind`, which metrics count: a `ReasonKind`, a rule of claims and dialects, or one of the extender's own
    (`allocations.extender.reasons`).
    """

    text: str
    resolvable: bool
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Which candidates cannot serve, and why."""

    candidates: NDArray[np.int32]
    """[c] node rows, ascending."""
    node_names: tuple[str, ...]
    """Names of all nodes of the snapshot."""
    reason_code: NDArray[np.int16]
    """[c] index into `reasons`, -1 where the node could serve."""
    reasons: tuple[Reason, ...]
    """The different reasons, in the order in which candidates first gave them."""

    def counts(self) -> dict[str, int]:
        """Text of a reason → number of candidates refused for it, in the order of `reasons`."""
        numbers = np.bincount(self.reason_code + 1, minlength=len(self.reasons) + 1).tolist()
        return {reason.text: count for reason, count in zip(self.reasons, numbers[1:], strict=True)}

    def kinds(self) -> set[str]:
        """The kinds of the reasons."""
        return {reason.kind for reason in self.reasons}

    def refused(self) -> Iterator[tuple[str, Reason]]:
        """(node name, reason) of every candidate that could not serve, in node order."""
        for row in np.flatnonzero(self.reason_code >= 0).tolist():
            yield self.node_names[self.candidates[row]], self.reasons[self.reason_code[row]]

    def serving(self) -> list[str]:
        """Names of the candidates that could serve, in node order."""
        return [self.node_names[row] for row in self.candidates[self.reason_code < 0].tolist()]


class PlanQuery(NamedTuple):
    """The arguments of `engine.plan.plan`."""

    request: DeviceRequest
    freed: tuple[Held, ...] = ()
    """Counted as free, the pod's own hold included."""
    blocked: frozenset[int] = frozenset()
    last: tuple[int, ...] = ()
    every_node: bool = True
    """Every node is a candidate."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The answer to one request over the candidate nodes. "It does not fit" is a Decision, never an exception.

    `candidates`: [c] node rows, ascending. What most callers of a success do not read is computed on demand:
    `engine.plan.verdicts_of` and `feasible`.
    """

    node: str | None
    grants: tuple[Grant, ...]
    candidates: NDArray[np.int32]
    summary: str
    query: PlanQuery
    verdicts: Verdicts | None = None
    """Always of a refusal; of a success where requested."""
    minors: tuple[tuple[int, ...], ...] = ()
    """Those given to each ask, where several asks are for one device type."""
    by_kubelet: bool = False
    """The node's kubelet chooses the devices."""

    def served(self, request: DeviceRequest) -> DeviceRequest:
        """The request with what each ask was given, where grants alone do not say, and who chooses the devices."""
        if request.by_kubelet != self.by_kubelet:
            request = msgspec.structs.replace(request, by_kubelet=self.by_kubelet)
        if not self.minors:
            return request
        asks = [
            msgspec.structs.replace(ask, given=minors) for ask, minors in zip(request.asks, self.minors, strict=True)
        ]
        return msgspec.structs.replace(request, asks=tuple(asks))
