"""Why a node cannot serve, in one stable vocabulary.

Called by `engine.plan`. Invariants: a text names no node and no number that is not the request's, so that equal reasons
of many nodes count together in a pod's event; `resolvable` means that the node would fit if nothing on it were used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.decision import Reason, ReasonKind
from allocations.engine.snapshot import Grouped, Withheld
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from allocations.engine.multi_container import MultiContainerNeeds
    from allocations.engine.needs import Need
    from allocations.engine.pcie_affinity import PcieAffinityNeeds
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceAsk, DeviceRequest

NOT_SELECTED = "node is in device-plugin mode, which the pod does not select by gpu.scheduling/mode"
"""Of pods that see what our annotation names, which a kubelet that chooses by itself may not have chosen."""
KUBELET_CHOOSES = "node is in device-plugin mode, where the kubelet chooses GPUs: the pod restricts which they may be"
KUBELET_GIVES = "node is in device-plugin mode, whose kubelet would give the pod GPUs by its nvidia.com/gpu as well"
GPUS_ALONE = "node is in device-plugin mode, where gpuplane places whole GPUs and shares of GPUs alone"

IN_MIG_MODE = "are in MIG mode: only their instances are given"
CLOSED = "are closed: held outside gpuplane, or it is not known who holds them"
RESERVED = "have reservation pods that take nobody new"
SEVERAL_NEVER = "no devices that serve all containers"
SEVERAL_NOT_NOW = "no devices free that serve all containers"
TOO_MANY_WAYS = "no devices found that serve all containers; not every way was tried"

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def memory_text(memory_bytes: int) -> str:
    """`16 GiB`, `46068 MiB`, `1.5 GiB`: the largest unit that says it exactly, else one decimal."""
    for size, unit in _UNITS:
        if size <= memory_bytes < size * 100_000 and (memory_bytes * 10) % size == 0:
            return f"{memory_bytes / size:.{0 if memory_bytes % size == 0 else 1}f} {unit}"
    for size, unit in _UNITS:
        if memory_bytes >= size:
            return f"{memory_bytes / size:.1f} {unit}"
    return f"{memory_bytes} bytes"


def kubelet_text(request: DeviceRequest) -> str:
    """Why a node whose kubelet chooses devices cannot serve the request, where it cannot."""
    if request.whole_native:
        return NOT_SELECTED
    if request.kubelet_gpus:
        return KUBELET_GIVES
    return KUBELET_CHOOSES if all(ask.type == GPU for ask in request.asks) else GPUS_ALONE


def share_text(ask: DeviceAsk) -> str:
    """`50 core`, `16 GiB memory`, `50 core and 25% memory`."""
    return " and ".join(text for text in (_core_text(ask), _memory_text(ask)) if text)


_RESOLVABLE = {
    ReasonKind.WHOLE_TAKEN,
    ReasonKind.SHARE_TAKEN,
    ReasonKind.ISLAND_TAKEN,
    ReasonKind.SWITCH_TAKEN,
    ReasonKind.SEVERAL_TAKEN,
}


class _Verdicts:
    """Collects one reason a node, the first one given."""

    def __init__(self, pending: NDArray[np.bool_]) -> None:
        self.open = pending.copy()
        self.code = np.full(len(pending), -1, dtype=np.int16)
        self.reasons: dict[Reason, int] = {}

    def give(self, nodes: NDArray[np.bool_], text: str, kind: ReasonKind) -> None:
        """Give the reason to those of these nodes ([n] bool) that have none yet."""
        hit = self.open & nodes
        if hit.any():
            self.code[hit] = self.reasons.setdefault(Reason(text, kind in _RESOLVABLE, kind), len(self.reasons))
            self.open &= ~hit


def verdicts(
    snapshot: Snapshot,
    needs: Sequence[Need],
    pending: NDArray[np.bool_],
    *,
    kept_out: NDArray[np.bool_],
    kept_out_text: str,
    strict: bool,
    affinity: PcieAffinityNeeds | None,
    containers: MultiContainerNeeds | None,
) -> tuple[NDArray[np.int16], tuple[Reason, ...]]:
    """A reason for each pending node ([n] bool): [n] indices into the reasons, -1 elsewhere.

    `kept_out`: nodes whose mode excludes the request, and why. `strict`: GPUs must share an island. `affinity`,
    `containers`: see `engine.choice.choose_devices`.
    """
    found = _Verdicts(pending)
    closed = pending & ~snapshot.index.problem_free
    for text in sorted({snapshot.node_problem[row] for row in np.flatnonzero(closed).tolist()}):
        having = np.array([problem == text for problem in snapshot.node_problem], dtype=np.bool_)
        found.give(having, text, ReasonKind.NODE)
    found.give(kept_out, kept_out_text, ReasonKind.MODE)
    for need in needs:
        _never(found, need, strict=strict and need.ask.type == GPU)
    joint = affinity if affinity is not None and affinity.required else None
    if joint is not None:
        text = f"no {joint.text} devices under the same PCIe switches"
        found.give(joint.ever == 0, text, ReasonKind.SWITCH)
    if containers is not None:
        found.give(~containers.ever(found.open), SEVERAL_NEVER, ReasonKind.SEVERAL)
    for need in needs:
        _not_now(found, need, strict=strict and need.ask.type == GPU)
    if joint is not None:
        text = f"no {joint.text} devices free under the same PCIe switches"
        found.give(joint.fewest == 0, text, ReasonKind.SWITCH_TAKEN)
    if containers is not None:
        able = containers.able(found.open)
        text = TOO_MANY_WAYS if containers.given_up else SEVERAL_NOT_NOW
        found.give(~able, text, ReasonKind.SEVERAL_TAKEN)
    return found.code, tuple(found.reasons)


def summary_text(total: int, reasons: Iterable[tuple[str, int]]) -> str:
    """`5 of 8 nodes: no device with 50 core free; 3: node is not ready`, most frequent first."""
    counted = sorted(reasons, key=lambda one: (-one[1], one[0]))
    if not counted:
        return f"none of {total} nodes can serve" if total else "there are no nodes"
    (first, most), *others = counted
    return "; ".join([f"{most} of {total} nodes: {first}", *(f"{count}: {text}" for text, count in others)])


def _never(found: _Verdicts, need: Need, *, strict: bool) -> None:
    """Nodes that could not serve even if nothing were used."""
    ask, kind, count = need.ask, need.ask.type, need.ask.count
    there = need.view.count.astype(np.int64)
    found.give(there == 0, f"no {kind} devices", ReasonKind.NO_DEVICE)
    if need.permitted is not None:
        which = "of the models asked" if ask.limits is None else "that the pod's annotations allow"
        there = need.per_node(need.permitted)
        found.give(there == 0, f"no {kind} {which}", ReasonKind.MODEL)
        found.give(there < count, f"fewer than {count} {kind} devices {which}", ReasonKind.MODEL)
    found.give(there < count, f"fewer than {count} {kind} devices", ReasonKind.TOO_FEW)
    healthy = need.per_node(need.eligible)
    if need.grouped.any():
        serving = need.per_node((need.grouped == Grouped.CLOSED) & (need.kept == Withheld.NOT))
        shut = (healthy < count) & (healthy + serving >= count)
        found.give(shut, f"{kind} devices {RESERVED}", ReasonKind.RESERVED)
    if need.kept.any():
        mig, closed = (need.per_node(need.kept == kept) for kept in (Withheld.MIG, Withheld.CLOSED))
        found.give(there - mig < count, f"{kind} devices {IN_MIG_MODE}", ReasonKind.MIG)
        shut = (healthy < count) & (healthy + closed >= count)
        found.give(shut, f"{kind} devices {CLOSED}", ReasonKind.CLOSED)
    found.give(healthy == 0, f"no healthy {kind} device", ReasonKind.SICK)
    found.give(healthy < count, f"fewer than {count} healthy {kind} devices", ReasonKind.SICK)
    if not ask.whole:
        serving = need.per_node(need.ever)
        without = need.view.node_memory <= 1
        text = f"{kind} devices have no memory to share"
        found.give((serving < count) & without, text, ReasonKind.TOO_SMALL)
        found.give(serving < count, _devices(ask, share_text(ask), "gpu "), ReasonKind.TOO_SMALL)
    if need.at_one_numa:
        text = f"fewer than {count} {kind} devices at one NUMA node"
        found.give(need.most_at_numa(need.ever) < count, text, ReasonKind.NUMA)
    if strict:
        text = f"no NVLink island of {count} {kind} devices"
        found.give(need.view.most_in_group(need.ever) < count, text, ReasonKind.ISLAND)


def _not_now(found: _Verdicts, need: Need, *, strict: bool) -> None:
    """Nodes that could serve if less were used."""
    ask, count = need.ask, need.ask.count
    where = " at one NUMA node" if need.at_one_numa else ""
    if ask.whole:
        few = f"no whole {ask.type} device" if count == 1 else f"fewer than {count} whole {ask.type} devices"
        found.give(~need.enough, f"{few} free{where}", ReasonKind.WHOLE_TAKEN)
    else:
        for fits, amount in ((need.core_fits, _core_text(ask)), (need.memory_fits, _memory_text(ask))):
            if amount:
                short = need.per_node(need.eligible & fits) < count
                found.give(short, _devices(ask, f"{amount} free"), ReasonKind.SHARE_TAKEN)
        text = _devices(ask, f"{share_text(ask)} free{where}")
        found.give(~need.enough, text, ReasonKind.SHARE_TAKEN)
    if strict:
        text = f"no NVLink island with {count} {ask.type} devices free"
        found.give(need.view.most_in_group(need.fits) < count, text, ReasonKind.ISLAND_TAKEN)


def _devices(ask: DeviceAsk, what: str, gpu: str = "") -> str:
    kind = gpu if ask.type == GPU else f"{ask.type} "
    return f"no {kind}device with {what}" if ask.count == 1 else f"fewer than {ask.count} {kind}devices with {what}"


def _core_text(ask: DeviceAsk) -> str:
    return f"{ask.core_percent} core" if ask.core_percent else ""


def _memory_text(ask: DeviceAsk) -> str:
    if ask.memory_bytes is not None:
        return f"{memory_text(ask.memory_bytes)} memory" if ask.memory_bytes else ""
    return f"{ask.memory_ratio}% memory" if ask.memory_ratio else ""
