"""What the engine answers: devices, scores, and why each node lost.

Read by the ledger (grants), the extender (JSON), explain and the what-if page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Kind(StrEnum):
    """What sort of reason it is, for counting: the few that there are, whatever numbers the text has."""

    NODE = "node-not-ready"
    MODE = "node-mode"
    NO_DEVICE = "no-such-device"
    MODEL = "model"
    TOO_FEW = "too-few-devices"
    SICK = "unhealthy"
    MIG = "mig-mode"
    CLOSED = "closed"
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
    """Why a node cannot serve. `resolvable`: removing lower-priority pods could help (DESIGN §4)."""

    text: str
    resolvable: bool
    kind: Kind


class Account(Protocol):
    """Works out the parts of a decision that not every caller reads."""

    def reasons(self) -> tuple[NDArray[np.int16], tuple[Reason, ...]]:
        """`reason_code` and `reasons` of the decision."""

    def scores(self) -> NDArray[np.float64]:
        """`score` of the decision."""


@dataclass(frozen=True, eq=False)
class Decision:
    """The answer to one request over the candidate nodes. Not fitting is a Decision, never an exception.

    `candidates`: [c] node rows that were asked about, ascending. What most callers of a success do
    not read (why others lost, how they rank) is worked out when first read, from the picture that
    was decided upon.
    """

    node: str | None
    grants: tuple[Grant, ...]
    candidates: NDArray[np.int32]
    node_names: tuple[str, ...]
    summary: str
    account: Account = field(repr=False)
    minors: tuple[tuple[int, ...], ...] = ()
    """Those of each ask, where several asks of the request are for one device type."""
    by_kubelet: bool = False
    """The node is one where the kubelet chooses the devices."""

    @cached_property
    def _judged(self) -> tuple[NDArray[np.int16], tuple[Reason, ...]]:
        return self.account.reasons()

    @property
    def reason_code(self) -> NDArray[np.int16]:
        """[c] index into `reasons`, -1 where the node could serve."""
        return self._judged[0]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The different reasons, in the order in which candidates first gave them."""
        return self._judged[1]

    @cached_property
    def score(self) -> NDArray[np.float64]:
        """[c] 0..1, 0 where the node could not serve; higher is better, in the very order in which the engine chooses."""
        return self.account.scores()

    def served(self, request: DeviceRequest) -> DeviceRequest:
        """The request that was decided, with what each ask was given where that cannot be told from the grants, and by whom."""
        if request.by_kubelet != self.by_kubelet:
            request = msgspec.structs.replace(request, by_kubelet=self.by_kubelet)
        if not self.minors:
            return request
        asks = [
            msgspec.structs.replace(ask, given=minors) for ask, minors in zip(request.asks, self.minors, strict=True)
        ]
        return msgspec.structs.replace(request, asks=tuple(asks))

    def counts(self) -> dict[str, int]:
        """Reason → how many candidates it refused."""
        code = self.reason_code
        numbers = np.bincount(code[code >= 0], minlength=len(self.reasons)).tolist()
        return {reason.text: count for reason, count in zip(self.reasons, numbers, strict=True) if count}

    def kinds(self) -> set[Kind]:
        """The sorts of reason that candidates were refused for."""
        return {reason.kind for reason in self.reasons}

    def refused(self) -> Iterator[tuple[str, Reason]]:
        """(node name, reason) of every candidate that could not serve, in node order."""
        for row in np.flatnonzero(self.reason_code >= 0).tolist():
            yield (
                self.node_names[self.candidates[row]],
                self.reasons[self.reason_code[row]],
            )

    def feasible(self) -> Iterator[tuple[str, float]]:
        """(node name, score) of every candidate that could serve, in node order."""
        for row in np.flatnonzero(self.reason_code < 0).tolist():
            yield self.node_names[self.candidates[row]], float(self.score[row])
