"""A result as the what-if page shows it: counted and truncated, so bounded whatever the scenario.

Called by `allocations.whatif.program`, shown by `gpuplane.pages.simulation`. Pure.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from allocations.scenario.result import DeviceResult, DeviceUsed, EvictionResult, QuotaResult, ScalingResult
from allocations.scenario.slots.digest import SlotsDigest, slots_digest

if TYPE_CHECKING:
    from allocations.scenario.result import PodDecision, Result

DECISIONS_SHOWN: Final = 500
DEVICES_SHOWN: Final = 32
"""Of a decision, and of a node."""
REASONS_SHOWN: Final = 12
NODES_SHOWN: Final = 200
PROBLEMS_SHOWN: Final = 50
EVICTIONS_SHOWN: Final = 100
QUOTAS_SHOWN: Final = 100
SCALING_SHOWN: Final = 100
TEXT_LONGEST: Final = 600


class DecisionDigest(msgspec.Struct, frozen=True):
    """One pod. `reasons`: most frequent first, each with its number of nodes."""

    pod: str
    node: str | None
    devices: tuple[DeviceResult, ...]
    more_devices: int
    reasons: tuple[tuple[str, int], ...]
    summary: str


class NodeDigest(msgspec.Struct, frozen=True):
    """One node afterwards. `total` and `used` count devices; `devices` are the first of them."""

    name: str
    total: int
    used: int
    devices: tuple[DeviceUsed, ...]


class Digest(msgspec.Struct, frozen=True):
    """The whole answer. `more_…`: how many were left out, here and in decisions. `quotas`: each with its queue; `used`
    of `devices` are in use in the whole fleet.

    `slots`: None where the scenario has no models. `scaling`: nodes to be made, each with the first of its pods.
    """

    placed: int
    refused: int
    decisions: tuple[DecisionDigest, ...]
    more_decisions: int
    nodes: int
    fleet: tuple[NodeDigest, ...]
    more_nodes: int
    problems: tuple[str, ...]
    more_problems: int
    evictions: tuple[EvictionResult, ...] = ()
    more_evictions: int = 0
    quotas: tuple[tuple[str, QuotaResult], ...] = ()
    more_quotas: int = 0
    slots: SlotsDigest | None = None
    used: int = 0
    devices: int = 0
    scaling: tuple[ScalingResult, ...] = ()
    more_scaling: int = 0


def digest_of(result: Result) -> Digest:
    """What the page shows of a result."""
    placed = sum(decision.node is not None for decision in result.decisions)
    evictions = result.evictions or ()
    scaling = result.scaling or ()
    quotas = [(name, quota) for name, entries in result.queues.items() for quota in entries]
    return Digest(
        placed=placed,
        refused=len(result.decisions) - placed,
        decisions=tuple(_decision(decision) for decision in result.decisions[:DECISIONS_SHOWN]),
        more_decisions=max(0, len(result.decisions) - DECISIONS_SHOWN),
        nodes=len(result.fleet),
        fleet=tuple(
            NodeDigest(
                name,
                len(devices),
                sum(_is_used(one) for one in devices),
                devices[:DEVICES_SHOWN],
            )
            for name, devices in islice(result.fleet.items(), NODES_SHOWN)
        ),
        more_nodes=max(0, len(result.fleet) - NODES_SHOWN),
        problems=tuple(_truncated(problem) for problem in result.problems[:PROBLEMS_SHOWN]),
        more_problems=max(0, len(result.problems) - PROBLEMS_SHOWN),
        evictions=evictions[:EVICTIONS_SHOWN],
        more_evictions=max(0, len(evictions) - EVICTIONS_SHOWN),
        quotas=tuple(quotas[:QUOTAS_SHOWN]),
        more_quotas=max(0, len(quotas) - QUOTAS_SHOWN),
        slots=slots_digest(result.slots, result.requests or (), result.keep_warm, result.estimates)
        if result.slots is not None
        else None,
        used=sum(_is_used(one) for devices in result.fleet.values() for one in devices),
        devices=sum(len(devices) for devices in result.fleet.values()),
        scaling=tuple(_short(one) for one in scaling[:SCALING_SHOWN]),
        more_scaling=max(0, len(scaling) - SCALING_SHOWN),
    )


def _is_used(device: DeviceUsed) -> bool:
    return bool(device.core_used or device.memory_used)


def _decision(decision: PodDecision) -> DecisionDigest:
    counted = Counter(decision.reasons.values()).most_common(REASONS_SHOWN)
    return DecisionDigest(
        pod=decision.pod,
        node=decision.node,
        devices=decision.devices[:DEVICES_SHOWN],
        more_devices=max(0, len(decision.devices) - DEVICES_SHOWN),
        reasons=tuple((_truncated(reason), count) for reason, count in counted),
        summary=_truncated(decision.summary),
    )


def _short(scaling: ScalingResult) -> ScalingResult:
    return msgspec.structs.replace(scaling, pods=scaling.pods[:DEVICES_SHOWN])


def _truncated(text: str) -> str:
    return text if len(text) <= TEXT_LONGEST else text[: TEXT_LONGEST - 1] + "…"
