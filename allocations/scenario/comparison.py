"""A changed scenario's digest beside that of the fleet as it is: what a change would do.

Called by the what-if page. Pure. Invariants: only what differs is listed, and of digests no more than they show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from allocations.scenario.digest import Digest

NODES_COMPARED: Final = 50
PODS_COMPARED: Final = 100


class QueueBeside(msgspec.Struct, frozen=True):
    """A quota today and then; (fair share, allocated), None where the queue or the entry is not there."""

    queue: str
    models: tuple[str, ...]
    today: tuple[float, float] | None
    then: tuple[float, float] | None

    @property
    def differs(self) -> bool:
        """Whether the change does something to it."""
        return self.today != self.then


class NodeBeside(msgspec.Struct, frozen=True):
    """A node today and then: (devices in use, devices), None where it is not there."""

    name: str
    today: tuple[int, int] | None
    then: tuple[int, int] | None


class PodBeside(msgspec.Struct, frozen=True):
    """A waiting pod that is decided about otherwise: its node, or why it has none; empty where it is not there."""

    pod: str
    today: str
    then: str


class Comparison(msgspec.Struct, frozen=True):
    """`used` of `devices`: in the fleet today and then. All `queues` are shown; of nodes and pods those that differ."""

    used: tuple[int, int]
    devices: tuple[int, int]
    queues: tuple[QueueBeside, ...]
    nodes: tuple[NodeBeside, ...]
    more_nodes: int
    pods: tuple[PodBeside, ...]
    evictions: int


def beside(today: Digest, then: Digest) -> Comparison:
    """What the second has that the first has not, and the other way round."""
    quotas = [{(name, one.models): (one.fair_share, one.allocated) for name, one in of.quotas} for of in (today, then)]
    fleets = [{one.name: (one.used, one.total) for one in of.fleet} for of in (today, then)]
    pods = [{one.pod: one.node or one.summary for one in of.decisions} for of in (today, then)]
    nodes = [NodeBeside(name, fleets[0].get(name), fleets[1].get(name)) for name in _differing(*fleets)]
    return Comparison(
        used=(today.used, then.used),
        devices=(today.devices, then.devices),
        queues=tuple(
            QueueBeside(name, models, quotas[0].get((name, models)), quotas[1].get((name, models)))
            for name, models in quotas[1] | quotas[0]
        ),
        nodes=tuple(nodes[:NODES_COMPARED]),
        more_nodes=max(0, len(nodes) - NODES_COMPARED),
        pods=tuple(
            PodBeside(name, pods[0].get(name, ""), pods[1].get(name, "")) for name in _differing(*pods)[:PODS_COMPARED]
        ),
        evictions=len(then.evictions) + then.more_evictions,
    )


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names that are in one alone, or stand for something else, in the order of the second."""
    return [name for name in {**other, **one} if one.get(name) != other.get(name)]
