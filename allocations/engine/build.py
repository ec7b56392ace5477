"""Make a Picture from plain rows, and make the next one from the last.

Called by `allocations.fleet` (rows from the ledger), `allocations.scenario` (rows from a file) and
tests. Kept true: a picture is never written to; `patch` copies only the three columns that change
(used core, used memory, health), `replace_nodes` is for everything else. The same rows give the
same picture in whatever order they come.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from allocations.engine.index import index_of, usage_carried
from allocations.engine.picture import EXCLUSIVE, Picture
from allocations.engine.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Scalar = TypeVar("Scalar", bound=np.generic)

GPU = "gpu"
"""The device type whose links and islands count; always type code 0."""


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
    return _assemble([_NodePart.of(node) for node in nodes])


def patch(picture: Picture, uses: Sequence[DeviceUse] | Sequence[tuple[int, int, int, bool]]) -> Picture:
    """The picture with these devices' used amounts and health, by device id; the last one of an id counts."""
    if not uses:
        return picture
    ids = np.fromiter((use[0] for use in uses), dtype=np.int64, count=len(uses))
    rows = picture.index.rows_of(ids)
    if (rows < 0).any():
        unknown = ids[rows < 0][0]
        raise UnknownDevice(f"no device {unknown} in the picture")
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
    new = [_NodePart.of(node) for node in nodes]
    gone = set(removed) | {part.name for part in new}
    kept = [_NodePart.from_picture(picture, row) for row, name in enumerate(picture.node_names) if name not in gone]
    return _assemble(kept + new)


def with_problems(picture: Picture, problems: Mapping[str, str]) -> Picture:
    """The picture with why nothing new may be placed on these nodes, empty where it may; unknown names are passed over."""
    known = {picture.node_index[name]: text for name, text in problems.items() if name in picture.node_index}
    texts = tuple(known.get(row, text) for row, text in enumerate(picture.node_problem))
    free = np.array([not text for text in texts], dtype=np.bool_)
    return replace(picture, node_problem=texts, index=replace(picture.index, problem_free=free))


def _with_columns(
    picture: Picture,
    rows: NDArray[np.intp],
    core: NDArray[np.int16],
    memory: NDArray[np.int64],
    healthy: NDArray[np.bool_],
) -> Picture:
    after = replace(picture, core_used=core, memory_used=memory, device_healthy=healthy, usage={})
    usage_carried(picture, after, np.unique(picture.device_node[rows]).tolist())
    return after


class _NodePart(NamedTuple):
    """A node on its way into a picture: columns of its devices, sorted by type (gpu first) and minor."""

    name: str
    mode: int
    problem: str
    topology: Topology
    ids: Sequence[int]
    uuids: Sequence[str]
    types: Sequence[str]
    models: Sequence[str]
    minors: Sequence[int]
    numa: Sequence[int]
    pcie: Sequence[int]
    islands: Sequence[int]
    healthy: Sequence[bool]
    memory_total: Sequence[int]
    core_used: Sequence[int]
    memory_used: Sequence[int]

    @staticmethod
    def of(node: NodeRow) -> _NodePart:
        devices = sorted(node.devices, key=lambda one: (one.type != GPU, one.type, one.minor))
        gpus = [one for one in devices if one.type == GPU]
        topology = Topology.of(
            [one.minor for one in gpus],
            node.links,
            pcie=[one.pcie for one in gpus],
            numa=[one.numa for one in gpus],
        )
        switches: dict[str, int] = {}
        return _NodePart(
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
            healthy=[one.healthy for one in devices],
            memory_total=[one.memory_bytes or 0 for one in devices],
            core_used=[one.core_used for one in devices],
            memory_used=[one.memory_used for one in devices],
        )

    @staticmethod
    def from_picture(picture: Picture, row: int) -> _NodePart:
        own = slice(int(picture.node_start[row]), int(picture.node_start[row + 1]))
        return _NodePart(
            name=picture.node_names[row],
            mode=int(picture.node_mode[row]),
            problem=picture.node_problem[row],
            topology=picture.node_topology[row],
            ids=picture.device_id[own].tolist(),
            uuids=picture.device_uuid[own],
            types=[picture.types[code] for code in picture.device_type[own].tolist()],
            models=[picture.models[code] for code in picture.device_model[own].tolist()],
            minors=picture.device_minor[own].tolist(),
            numa=picture.device_numa[own].tolist(),
            pcie=picture.device_pcie[own].tolist(),
            islands=picture.device_island[own].tolist(),
            healthy=picture.device_healthy[own].tolist(),
            memory_total=picture.memory_total[own].tolist(),
            core_used=picture.core_used[own].tolist(),
            memory_used=picture.memory_used[own].tolist(),
        )


def _assemble(parts: list[_NodePart]) -> Picture:
    parts = sorted(parts, key=lambda part: part.name)
    names = tuple(part.name for part in parts)
    if len(set(names)) != len(names):
        raise ValueError("node names must be unique")
    sizes = [len(part.ids) for part in parts]

    def column(field: str, dtype: type[Scalar]) -> NDArray[Scalar]:
        values = chain.from_iterable(getattr(part, field) for part in parts)
        return np.fromiter(values, dtype=dtype, count=sum(sizes))

    others = {kind for part in parts for kind in part.types} - {GPU}
    types = (GPU, *sorted(others))
    models = tuple(sorted({model for part in parts for model in part.models}))
    type_code = {kind: code for code, kind in enumerate(types)}
    model_code = {model: code for code, model in enumerate(models)}
    start = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum(sizes, out=start[1:])
    device_node = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    device_type = np.fromiter(
        (type_code[kind] for part in parts for kind in part.types), dtype=np.int16, count=sum(sizes)
    )
    device_model = np.fromiter(
        (model_code[model] for part in parts for model in part.models), dtype=np.int16, count=sum(sizes)
    )
    device_id = column("ids", np.int64)
    device_island = column("islands", np.int32)
    memory_total = column("memory_total", np.int64)
    topologies = tuple(part.topology for part in parts)
    problems = tuple(part.problem for part in parts)
    return Picture(
        node_names=names,
        node_index={name: row for row, name in enumerate(names)},
        node_mode=np.array([part.mode for part in parts], dtype=np.uint8),
        node_problem=problems,
        node_start=start,
        node_topology=topologies,
        types=types,
        models=models,
        device_id=device_id,
        device_uuid=tuple(chain.from_iterable(part.uuids for part in parts)),
        device_node=device_node,
        device_type=device_type,
        device_model=device_model,
        device_minor=column("minors", np.int32),
        device_numa=column("numa", np.int32),
        device_pcie=column("pcie", np.int32),
        device_island=device_island,
        device_healthy=column("healthy", np.bool_),
        memory_total=memory_total,
        core_used=column("core_used", np.int16),
        memory_used=column("memory_used", np.int64),
        type_code=type_code,
        model_code=model_code,
        index=index_of(
            nodes=len(parts),
            device_id=device_id,
            device_node=device_node,
            device_type=device_type,
            device_model=device_model,
            device_island=device_island,
            memory_total=memory_total,
            topologies=topologies,
            problems=problems,
        ),
    )
