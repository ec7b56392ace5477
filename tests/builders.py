"""Builders for the engine: fleets and requests in a line, and the ledger's rule for applying a Decision.

fleet(node("n1", gpus=8, links=pairs(8)), node("n2", gpus=4, used={0: (50, 40 * GI)}))
whole(4, policy=Policy.CONTIGUOUS), share(core=50, ratio=50), request(DeviceAsk("rdma", 1))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from allocations.engine.build import DeviceRow, NodeRow, build_snapshot
from allocations.engine.decision import Decision, Verdicts
from allocations.engine.patch import take
from allocations.engine.snapshot import EXCLUSIVE, Snapshot
from claims.dialects.request import DeviceAsk, DeviceRequest, Policy

MI = 1 << 20
GI = 1 << 30
H100_BYTES = 80 * GI
HALF = (50, H100_BYTES // 2)
"""Core percent and bytes of half an H100."""

Links = tuple[tuple[int, int, int], ...]


def pairs(gpus: int, nvlinks: int = 4) -> Links:
    """NVLinks within 0-1, 2-3, … only."""
    return tuple((minor, minor + 1, nvlinks) for minor in range(0, gpus - 1, 2))


def full_mesh(gpus: int, nvlinks: int = 18) -> Links:
    """Every pair linked, as behind an NVSwitch."""
    return tuple((low, high, nvlinks) for high in range(gpus) for low in range(high))


def halves(gpus: int, nvlinks: int = 4) -> Links:
    """Two islands, each fully linked."""
    half = gpus // 2
    return tuple(link for link in full_mesh(gpus, nvlinks) if (link[0] < half) == (link[1] < half))


_numbered: dict[str, int] = {}


def device_id(node_name: str, kind: str, minor: int) -> int:
    """The id that the builders give a device; the same for the same node, type and minor within a run."""
    return _numbered.setdefault(f"{node_name}/{kind}/{minor}", len(_numbered) + 1)


def device(
    node_name: str,
    minor: int,
    *,
    kind: str = "gpu",
    model: str = "H100",
    memory: int | None = H100_BYTES,
    numa: int = -1,
    pcie: str = "",
    healthy: bool = True,
    used: tuple[int, int] = (0, 0),
) -> DeviceRow:
    """One device; `used` is (core percent, bytes)."""
    return DeviceRow(
        device_id=device_id(node_name, kind, minor),
        uuid=f"{kind.upper()}-{node_name}-{minor}",
        type=kind,
        minor=minor,
        model=model,
        memory_bytes=memory,
        numa=numa,
        pcie=pcie,
        healthy=healthy,
        core_used=used[0],
        memory_used=used[1],
    )


def node(
    name: str,
    *,
    gpus: int | Sequence[int] = 0,
    links: Iterable[tuple[int, int, int]] = (),
    model: str = "H100",
    memory: int = H100_BYTES,
    taken: Iterable[int] = (),
    used: Mapping[int, tuple[int, int]] | None = None,
    sick: Iterable[int] = (),
    numa: Callable[[int], int] = lambda minor: minor // 4,
    pcie: Callable[[int], str] = lambda minor: "",
    others: Iterable[DeviceRow] = (),
    mode: int = EXCLUSIVE,
    problem: str = "",
) -> NodeRow:
    """A node with `gpus` GPUs (a number, or their minors): `taken` are wholly used, `used` are in part (GPU minor →
    core, bytes).
    """
    minors = range(gpus) if isinstance(gpus, int) else gpus
    in_use = {**(used or {}), **dict.fromkeys(taken, (100, memory))}
    rows = [
        device(
            name,
            minor,
            model=model,
            memory=memory,
            numa=numa(minor),
            pcie=pcie(minor),
            healthy=minor not in set(sick),
            used=in_use.get(minor, (0, 0)),
        )
        for minor in minors
    ]
    return NodeRow(name=name, mode=mode, problem=problem, links=tuple(links), devices=(*rows, *others))


def nic(
    node_name: str,
    minor: int,
    *,
    kind: str = "rdma",
    numa: int = -1,
    pcie: str = "",
    used: int = 0,
    healthy: bool = True,
) -> DeviceRow:
    """A device without memory."""
    return device(
        node_name, minor, kind=kind, model="", memory=None, numa=numa, pcie=pcie, used=(used, 0), healthy=healthy
    )


def fleet(*nodes: NodeRow) -> Snapshot:
    """The picture of these nodes."""
    return build_snapshot(nodes)


def request(*asks: DeviceAsk, **options: object) -> DeviceRequest:
    """A request; options are the fields of DeviceRequest."""
    return DeviceRequest(asks=asks, **options)  # type: ignore[arg-type]  # fields of the struct, checked when used


def whole(count: int = 1, *, models: tuple[str, ...] = (), **options: Any) -> DeviceRequest:
    """Whole GPUs."""
    return request(DeviceAsk("gpu", count, models=models), **options)


def share(
    *, core: int = 0, memory: int | None = None, ratio: int | None = None, count: int = 1, **options: Any
) -> DeviceRequest:
    """Shares of GPUs."""
    return request(DeviceAsk("gpu", count, core_percent=core, memory_bytes=memory, memory_ratio=ratio), **options)


def apply(picture: Snapshot, decision: Decision) -> Snapshot:
    """The picture with the decision's devices taken, as the ledger would."""
    return take(picture, [(one.device_id, one.core_percent, one.memory_bytes or 0) for one in decision.grants])


def minors(decision: Decision, kind: str = "gpu") -> list[int]:
    """The minors granted of one type."""
    return [grant.minor for grant in decision.grants if grant.type == kind]


def told(decision: Decision) -> Verdicts:
    """What a decision comes with, where `plan` was not asked to leave it out."""
    assert decision.verdicts is not None
    return decision.verdicts


def reasons(decision: Decision) -> dict[str, str]:
    """Node name → why it could not serve."""
    return {name: reason.text for name, reason in told(decision).refused()}


__all__ = [
    "GI",
    "H100_BYTES",
    "MI",
    "Policy",
    "apply",
    "device",
    "device_id",
    "fleet",
    "full_mesh",
    "halves",
    "minors",
    "nic",
    "node",
    "pairs",
    "reasons",
    "request",
    "share",
    "told",
    "whole",
]
