"""What the engine answers: devices, scores, and why each node lost.

Read by the ledger (grants), the extender (JSON), explain and the what-if page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator


class Grant(msgspec.Struct, frozen=True):
    """One device, or a share of it, given to a request. Memory in bytes, None where the type has none."""

    device_id: int
    uuid: str
    type: str
    minor: int
    core_percent: int
    memory_bytes: int | None
    whole: bool


class Reason(msgspec.Struct, frozen=True):
    """Why a node cannot serve. `resolvable`: removing lower-priority pods could help (DESIGN §4)."""

    text: str
    resolvable: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request over the candidate nodes.

    `candidates`: [c] node rows that were asked about, ascending. `reason_code`: [c] index into
    `reasons`, -1 where the node could serve. `score`: [c] float 0..1, 0 where it could not; higher
    is better, in the very order in which the engine would choose. Not fitting is a Decision, never
    an exception.
    """

    node: str | None
    grants: tuple[Grant, ...]
    candidates: NDArray[np.int32]
    node_names: tuple[str, ...]
    reason_code: NDArray[np.int16]
    reasons: tuple[Reason, ...]
    score: NDArray[np.float64]
    summary: str

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
