"""Make a Picture from plain rows, and make the next one from the last.

Called by `allocations.fleet` (rows from the ledger), `allocations.scenario` (rows from a file) and
tests. Kept true: a picture is never written to; `patch` copies only the three columns that change
(used core, used memory, health), `replace_nodes` is for everything else. The same rows give the
same picture in whatever order they come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from allocations.engine.columns import NodePart, assembled, joined
from allocations.engine.index import usage_carried
from allocations.engine.picture import EXCLUSIVE, Picture, Withheld
from allocations.engine.topology import Topology
from kube.device_types import GPU

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class DeviceRow(msgspec.Struct, frozen=True):
    """One device. Memory in bytes, 0 or None where the type has none; `pcie` names its switch, empty if unknown."""

    device_id: int
    uuid: str
    type: str
    minor: int
    model: str = ""
    memory_bytes: int | None = None
    numa: int = -1
    pcie: str = ""
    healthy: bool = True
    kept: Withheld = Withheld.NOT
    """Anything but `NOT` comes with `healthy` False."""
    core_used: int = 0
    memory_used: int = 0


class NodeRow(msgspec.Struct, frozen=True):
    """One node: `problem` is why nothing new may be placed there, `links` are [GPU minor, GPU minor, NVLinks]."""

    name: str
    mode: int = EXCLUSIVE
    problem: str = ""
    links: tuple[tuple[int, int, int], ...] = ()
    devices: tuple[DeviceRow, ...] = ()


class DeviceUse(NamedTuple):
    """What may change about a device between two pictures of the same fleet."""

    device_id: int
    core_used: int
    memory_used: int
    healthy: bool


class UnknownDevice(LookupError):
    """A patch names a device that the picture does not have: its node must be replaced instead."""


def build_picture(nodes: Iterable[NodeRow]) -> Picture:
    """The picture of these nodes; names and device ids must be unique."""
    return assembled([_part(node) for node in nodes])


def patch(
    picture: Picture,
    uses: Sequence[DeviceUse] | Sequence[tuple[int, int, int, bool]],
    *,
    pass_over_unknown: bool = False,
) -> Picture:
    """The picture with these devices' used amounts and health, by device id; the last one of an id counts.

    Raises UnknownDevice for one that the picture does not have, unless those are to be passed over.
    """
    if not uses:
        return picture
    rows = picture.index.rows_of([use[0] for use in uses])
    if min(rows.tolist()) < 0:
        if not pass_over_unknown:
            raise UnknownDevice(f"no device {uses[int(np.argmin(rows))][0]} in the picture")
        uses = [use for row, use in zip(rows.tolist(), uses, strict=True) if row >= 0]
        return patch(picture, uses)
    core, memory = picture.core_used.copy(), picture.memory_used.copy()
    healthy = picture.device_healthy.copy()
    for row, use in zip(rows.tolist(), uses, strict=True):
        core[row], memory[row], healthy[row] = use[1], use[2], use[3]
    return _with_columns(picture, rows, core, memory, healthy)


def take(picture: Picture, amounts: Iterable[tuple[int, int, int]]) -> Picture:
    """The picture with amounts (device id, core percent, memory bytes) taken, as the ledger does on a hold.

    Raises UnknownDevice; what the amounts do to capacity is the caller's to know.
    """
    taken = list(amounts)
    rows = picture.index.rows_of([one[0] for one in taken]).tolist()
    uses = {
        device: DeviceUse(
            device,
            int(picture.core_used[row]) + core,
            int(picture.memory_used[row]) + memory,
            bool(picture.device_healthy[row]),
        )
        for row, (device, core, memory) in zip(rows, taken, strict=True)
    }
    return patch(picture, list(uses.values()))


def with_freed(picture: Picture, freed: Iterable[tuple[int, int, int]], blocked: Collection[int]) -> Picture:
    """The picture as if amounts (device id, core percent, memory bytes) were given back and devices were taken.

    Devices that the picture does not have are passed over: they are gone, nothing can be placed there.
    """
    back = list(freed)
    if not back and not blocked:
        return picture
    core, memory = picture.core_used.copy(), picture.memory_used.copy()
    rows = picture.index.rows_of([one[0] for one in back])
    for row, (_, core_percent, memory_bytes) in zip(rows.tolist(), back, strict=True):
        if row >= 0:
            core[row] = max(int(core[row]) - core_percent, 0)
            memory[row] = max(int(memory[row]) - memory_bytes, 0)
    taken = picture.index.rows_of(sorted(blocked))
    taken = taken[taken >= 0]
    core[taken] = 100
    memory[taken] = picture.memory_total[taken]
    return _with_columns(picture, np.concatenate((rows[rows >= 0], taken)), core, memory, picture.device_healthy)


def replace_nodes(picture: Picture, nodes: Iterable[NodeRow], *, removed: Collection[str] = ()) -> Picture:
    """The picture with these nodes added or put in the place of those of the same name, and others removed."""
    fresh = assembled([_part(node) for node in nodes])
    problems: dict[str, str] = {}
    uses: list[DeviceUse] = []
    gone = set(removed)
    alike = np.zeros(len(fresh.node_names), dtype=np.bool_)
    for row, name in enumerate(fresh.node_names):
        before = picture.node_index.get(name)
        if name not in gone and before is not None and _built_alike(picture, before, fresh, row):
            alike[row] = True
            problems[name] = fresh.node_problem[row]
            uses += _uses(fresh, row)
    gone.update(fresh.node_names)
    if alike.all() and not any(name in picture.node_index for name in removed):
        return with_problems(patch(picture, uses), problems)
    keep = np.array([name not in gone for name in picture.node_names], dtype=np.bool_)
    return joined(picture, keep, fresh)


def with_problems(picture: Picture, problems: Mapping[str, str]) -> Picture:
    """The picture with why nothing new may be placed on these nodes, empty where it may; unknown names are passed over."""
    known = {picture.node_index[name]: text for name, text in problems.items() if name in picture.node_index}
    if all(picture.node_problem[row] == text for row, text in known.items()):
        return picture
    texts = tuple(known.get(row, text) for row, text in enumerate(picture.node_problem))
    free = np.array([not text for text in texts], dtype=np.bool_)
    return replace(picture, node_problem=texts, index=replace(picture.index, problem_free=free))


_BUILT = ("device_id", "device_minor", "device_numa", "device_pcie", "device_island", "device_kept", "memory_total")


def _built_alike(picture: Picture, row: int, other: Picture, other_row: int) -> bool:
    """Whether two pictures' nodes differ at most in problem, health and use."""
    ours = slice(int(picture.node_start[row]), int(picture.node_start[row + 1]))
    theirs = slice(int(other.node_start[other_row]), int(other.node_start[other_row + 1]))
    return (
        picture.node_mode[row] == other.node_mode[other_row]
        and picture.node_topology[row] == other.node_topology[other_row]
        and picture.device_uuid[ours] == other.device_uuid[theirs]
        and all(np.array_equal(getattr(picture, name)[ours], getattr(other, name)[theirs]) for name in _BUILT)
        and _names(picture.types, picture.device_type[ours]) == _names(other.types, other.device_type[theirs])
        and _names(picture.models, picture.device_model[ours]) == _names(other.models, other.device_model[theirs])
    )


def _names(names: tuple[str, ...], codes: NDArray[np.int16]) -> list[str]:
    return [names[code] for code in codes.tolist()]


def _uses(picture: Picture, row: int) -> list[DeviceUse]:
    own = slice(int(picture.node_start[row]), int(picture.node_start[row + 1]))
    columns = (picture.device_id, picture.core_used, picture.memory_used, picture.device_healthy)
    return [DeviceUse(*values) for values in zip(*(column[own].tolist() for column in columns), strict=True)]


def _with_columns(
    picture: Picture,
    rows: NDArray[np.intp],
    core: NDArray[np.int16],
    memory: NDArray[np.int64],
    healthy: NDArray[np.bool_],
) -> Picture:
    after = replace(picture, core_used=core, memory_used=memory, device_healthy=healthy, usage={})
    usage_carried(picture, after, sorted(set(picture.device_node[rows].tolist())))
    return after


def _part(node: NodeRow) -> NodePart:
    devices = sorted(node.devices, key=lambda one: (one.type != GPU, one.type, one.minor))
    gpus = [one for one in devices if one.type == GPU]
    topology = Topology.of(
        [one.minor for one in gpus],
        node.links,
        pcie=[one.pcie for one in gpus],
        numa=[one.numa for one in gpus],
    )
    switches: dict[str, int] = {}
    return NodePart(
        name=node.name,
        mode=node.mode,
        problem=node.problem,
        topology=topology,
        ids=[one.device_id for one in devices],
        uuids=[one.uuid for one in devices],
        types=[one.type for one in devices],
        models=[one.model for one in devices],
        minors=[one.minor for one in devices],
        numa=[one.numa for one in devices],
        pcie=[switches.setdefault(one.pcie, len(switches)) if one.pcie else -1 for one in devices],
        islands=[*topology.islands, *[-1] * (len(devices) - len(gpus))],
        healthy=[one.healthy and one.kept is Withheld.NOT for one in devices],
        kept=[one.kept for one in devices],
        memory_total=[one.memory_bytes or 0 for one in devices],
        core_used=[one.core_used for one in devices],
        memory_used=[one.memory_used for one in devices],
    )
