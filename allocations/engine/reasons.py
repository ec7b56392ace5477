"""Why a node cannot serve, in one stable vocabulary.

Called by `engine.plan` when a decision's reasons are read. Kept true (DESIGN §4): a text names no
node and no number that the request did not bring, so that equal reasons count together in a pod's
event; `resolvable` means that the node would fit if nothing on it were used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.decision import Kind, Reason
from allocations.engine.picture import DEVICE_PLUGIN
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from allocations.engine.joint import Together
    from allocations.engine.needs import Need
    from allocations.engine.picture import Picture
    from allocations.engine.several import Several
    from claims.dialects.request import DeviceAsk

DEVICE_PLUGIN_MODE = "node is in device-plugin mode, reservation pods are not available yet"
NOT_SELECTED = "node is in device-plugin mode, which the pod does not select by gpu.scheduling/mode"
"""Of pods that would do there, but see what our annotation names: kubelets choose by themselves."""

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


def share_text(ask: DeviceAsk) -> str:
    """`50 core`, `16 GiB memory`, `50 core and 25% memory`."""
    return " and ".join(text for text in (_core_text(ask), _memory_text(ask)) if text)


class _Verdicts:
    """Collects one reason a node; the first one given stays."""

    def __init__(self, pending: NDArray[np.bool_]) -> None:
        self.open = pending.copy()
        self.code = np.full(len(pending), -1, dtype=np.int16)
        self.texts: dict[Reason, int] = {}

    def give(self, nodes: NDArray[np.bool_], text: str, kind: Kind, *, resolvable: bool) -> None:
        hit = self.open & nodes
        if hit.any():
            self.code[hit] = self.texts.setdefault(Reason(text, resolvable, kind), len(self.texts))
            self.open &= ~hit


def verdicts(
    picture: Picture,
    needs: Sequence[Need],
    pending: NDArray[np.bool_],
    *,
    kept_out: NDArray[np.bool_],
    told: str = DEVICE_PLUGIN_MODE,
    strict: bool,
    together: Together | None = None,
    several: Several | None = None,
) -> tuple[NDArray[np.int16], tuple[Reason, ...]]:
    """A reason for each pending node ([n] bool): [n] indices into the reasons, -1 elsewhere.

    `kept_out`: nodes whose mode does not take this request. `strict`: GPUs must share an island. `together`: needs that
    may have to be served under the same switches.
    """
    found = _Verdicts(pending)
    closed = pending & ~picture.index.problem_free
    for text in sorted({picture.node_problem[row] for row in np.flatnonzero(closed).tolist()}):
        having = np.array([problem == text for problem in picture.node_problem], dtype=np.bool_)
        found.give(having, text, Kind.NODE, resolvable=False)
    found.give(kept_out, told, Kind.MODE, resolvable=False)
    for need in needs:
        _never(found, need, strict=strict and need.ask.type == GPU)
    joint = together if together is not None and together.required else None
    if joint is not None:
        text = f"no {joint.text} devices under the same PCIe switches"
        found.give(joint.ever == 0, text, Kind.SWITCH, resolvable=False)
    if several is not None:
        found.give(~several.ever(found.open), SEVERAL_NEVER, Kind.SEVERAL, resolvable=False)
    for need in needs:
        _not_now(found, need, strict=strict and need.ask.type == GPU)
    if joint is not None:
        text = f"no {joint.text} devices free under the same PCIe switches"
        found.give(joint.fewest == 0, text, Kind.SWITCH_TAKEN, resolvable=True)
    if several is not None:
        able = several.able(found.open)
        text = TOO_MANY_WAYS if several.given_up else SEVERAL_NOT_NOW
        found.give(~able, text, Kind.SEVERAL_TAKEN, resolvable=True)
    return found.code, tuple(found.texts)


def kept_out_by_mode(picture: Picture, *, takes_device_plugin: bool) -> NDArray[np.bool_]:
    """[n] nodes that the kubelet's device plugin serves, where this request cannot be backed yet."""
    if takes_device_plugin:
        return np.zeros(len(picture.node_names), dtype=np.bool_)
    return np.equal(picture.node_mode, DEVICE_PLUGIN)


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
    if need.view is None:
        found.give(found.open, f"no {kind} devices", Kind.NO_DEVICE, resolvable=False)
        return
    there = need.view.count.astype(np.int64)
    found.give(there == 0, f"no {kind} devices", Kind.NO_DEVICE, resolvable=False)
    if need.permitted is not None:
        which = "of the models asked" if ask.limits is None else "that the pod's annotations allow"
        there = need.per_node(need.permitted)
        found.give(there == 0, f"no {kind} {which}", Kind.MODEL, resolvable=False)
        found.give(there < count, f"fewer than {count} {kind} devices {which}", Kind.MODEL, resolvable=False)
    found.give(there < count, f"fewer than {count} {kind} devices", Kind.TOO_FEW, resolvable=False)
    healthy = need.per_node(need.eligible)
    found.give(healthy == 0, f"no healthy {kind} device", Kind.SICK, resolvable=False)
    found.give(healthy < count, f"fewer than {count} healthy {kind} devices", Kind.SICK, resolvable=False)
    if not ask.whole:
        serving = need.per_node(need.ever)
        without = need.view.node_memory <= 1
        text = f"{kind} devices have no memory to share"
        found.give((serving < count) & without, text, Kind.TOO_SMALL, resolvable=False)
        found.give(serving < count, _devices(ask, share_text(ask), "gpu "), Kind.TOO_SMALL, resolvable=False)
    if need.at_one_numa:
        text = f"fewer than {count} {kind} devices at one NUMA node"
        found.give(need.most_at_numa(need.ever) < count, text, Kind.NUMA, resolvable=False)
    if strict:
        text = f"no NVLink island of {count} {kind} devices"
        found.give(need.most_in_island(need.ever) < count, text, Kind.ISLAND, resolvable=False)


def _not_now(found: _Verdicts, need: Need, *, strict: bool) -> None:
    """Nodes that could serve if less were used."""
    ask, count = need.ask, need.ask.count
    if need.view is None:
        return
    where = " at one NUMA node" if need.at_one_numa else ""
    if ask.whole:
        few = f"no whole {ask.type} device" if count == 1 else f"fewer than {count} whole {ask.type} devices"
        found.give(~need.enough, f"{few} free{where}", Kind.WHOLE_TAKEN, resolvable=True)
    else:
        for fits, told in ((need.core_fits, _core_text(ask)), (need.memory_fits, _memory_text(ask))):
            if told:
                short = need.per_node(need.eligible & fits) < count
                found.give(short, _devices(ask, f"{told} free"), Kind.SHARE_TAKEN, resolvable=True)
        text = _devices(ask, f"{share_text(ask)} free{where}")
        found.give(~need.enough, text, Kind.SHARE_TAKEN, resolvable=True)
    if strict:
        text = f"no NVLink island with {count} {ask.type} devices free"
        found.give(need.most_in_island(need.fits) < count, text, Kind.ISLAND_TAKEN, resolvable=True)


def _devices(ask: DeviceAsk, what: str, gpu: str = "") -> str:
    kind = gpu if ask.type == GPU else f"{ask.type} "
    return f"no {kind}device with {what}" if ask.count == 1 else f"fewer than {ask.count} {kind}devices with {what}"


def _core_text(ask: DeviceAsk) -> str:
    return f"{ask.core_percent} core" if ask.core_percent else ""


def _memory_text(ask: DeviceAsk) -> str:
    if ask.memory_bytes is not None:
        return f"{memory_text(ask.memory_bytes)} memory" if ask.memory_bytes else ""
    return f"{ask.memory_ratio}% memory" if ask.memory_ratio else ""
