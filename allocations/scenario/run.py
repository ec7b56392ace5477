"""Runs a scenario: takes the devices of running pods, then places each waiting pod in turn.

Called by `manage.py simulate`, REST and the what-if page. The engine decides over the nodes that kube-scheduler would
pass to filter, and a Decision is applied by the ledger's rules (whole: core 100 and all memory). Pure: no Django, no
clock. Invariants: the same scenario gives the same result; what is wrong with one pod affects no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from allocations.engine.amounts import Held
from allocations.engine.needs import amounts
from allocations.engine.patch import patch, take
from allocations.engine.snapshot import NO_MEMORY, Snapshot
from allocations.scenario.growth import with_growth
from allocations.scenario.in_order import in_order
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.queued import by_queues
from allocations.scenario.result import DeviceUsed, Result
from allocations.scenario.slots.run import Headers, no_files, planned, with_slots
from allocations.scenario.snapshots import snapshot_of
from allocations.scenario.waiting_pods import WaitingPods, parsed_request
from claims.dialects.adopted import AdoptedDevice, Unreadable
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest
from kube.device_types import ledger_type

if TYPE_CHECKING:
    from kube.objects import Pod
    from nodes.inventory import NodeShape


def run_scenario(scenario: Scenario, *, headers: Headers = no_files) -> Result:
    """The decisions and the fleet after them. `headers`: reads the GGUF files that models name."""
    snapshot = snapshot_of(scenario.nodes)
    problems = list(scenario.problems)
    holders: dict[str, tuple[Held, ...]] = {}
    living = [pod for pod in scenario.pods if not pod.finished]
    for pod in living:
        if pod.spec.node_name:
            held, problem = _adopt(snapshot, scenario, pod)
            holders[metadata_label(pod.metadata)] = held
            snapshot = take(snapshot, held)
            if problem:
                problems.append(f"{metadata_label(pod.metadata)}: {problem}")
    if scenario.inference is not None:
        snapshot, overfull = with_slots(scenario.inference, snapshot)
        problems += overfull
    snapshot = _without_held_parents(snapshot, scenario.nodes)
    pods = WaitingPods(scenario, snapshot)
    if scenario.queues is not None:
        answered = by_queues(scenario, scenario.queues, pods, snapshot, holders)
    else:
        answered = in_order(scenario, pods, snapshot)
    decisions, scaling = with_growth(scenario, pods, answered)
    result = Result(
        decisions=decisions,
        fleet=_fleet(answered.snapshot),
        problems=tuple(problems),
        evictions=answered.evictions,
        queues=answered.queues,
        scaling=scaling,
    )
    if scenario.inference is None:
        return result
    told, after = planned(scenario.inference, scenario.nodes, answered.snapshot, holders, headers)
    return msgspec.structs.replace(result, fleet=_fleet(after), **msgspec.structs.asdict(told))


def _without_held_parents(snapshot: Snapshot, nodes: Iterable[NodeShape]) -> Snapshot:
    """The snapshot with the MIG instances of GPUs that are held whole marked unhealthy: nothing new is placed there."""
    held = (snapshot.core_used > 0) | (snapshot.memory_used > 0)
    row_of = snapshot.index.row_of_uuid
    instances = [device for node in nodes for device in node.devices if device.parent]
    rows = [row_of[one.uuid] for one in instances if one.parent in row_of and held[row_of[one.parent]]]
    columns = (snapshot.device_id, snapshot.core_used, snapshot.memory_used)
    uses = zip(*(column[rows].tolist() for column in columns), strict=True)
    return patch(snapshot, [(device, core, memory, False) for device, core, memory in uses])


def _adopt(snapshot: Snapshot, scenario: Scenario, pod: Pod) -> tuple[tuple[Held, ...], str]:
    """(all of a running pod's devices, or none; what is wrong, if anything)."""
    parsed = parsed_request(scenario, pod)
    found = read_allocation(pod, request=parsed if isinstance(parsed, DeviceRequest) else None)
    if found is None:
        return (), "" if parsed is None else "runs without an allocation annotation; its devices are not known"
    if isinstance(found, Unreadable):
        return (), found.problem
    node = snapshot.node_index.get(found.node)
    if node is None:
        return (), f"runs on {found.node}, which is not in the scenario"
    uses: list[tuple[int, int, int]] = []
    for device in found.devices:
        row = _row(snapshot, node, device)
        if row is None:
            return (), f"holds {_named(device)}, which {found.node} does not have"
        total = int(snapshot.memory_total[row])
        taken = amounts(_ask(device), total)
        if taken is None or taken[1] > total:
            return (), f"holds more of {_named(device)} on {found.node} than it has"
        core, memory = int(snapshot.core_used[row]) + taken[0], int(snapshot.memory_used[row]) + taken[1]
        if core > 100 or memory > total or (device.whole and (core > taken[0] or memory > taken[1])):
            return (), f"holds {_named(device)} on {found.node}, which others hold already"
        uses.append((int(snapshot.device_id[row]), *taken))
    return tuple(uses), ""


def _row(snapshot: Snapshot, node: int, device: AdoptedDevice) -> int | None:
    here = snapshot.rows_of_node(node)
    for row in range(here.start, here.stop):
        if ledger_type(snapshot.types[snapshot.device_type[row]]) != device.type:
            continue
        if device.uuid == snapshot.device_uuid[row] or (
            device.minor is not None and device.minor == snapshot.device_minor[row]
        ):
            return row
    return None


def _ask(device: AdoptedDevice) -> DeviceAsk:
    return DeviceAsk(device.type, 1, device.core_percent, device.memory_bytes, device.memory_ratio)


def _named(device: AdoptedDevice) -> str:
    return device.uuid or f"{device.type} {device.minor}"


def _fleet(snapshot: Snapshot) -> dict[str, tuple[DeviceUsed, ...]]:
    core, memory = snapshot.core_used.tolist(), snapshot.memory_used.tolist()
    total, starts = snapshot.memory_total.tolist(), snapshot.node_start.tolist()
    return {
        name: tuple(
            DeviceUsed(snapshot.device_uuid[row], core[row], memory[row] if total[row] != NO_MEMORY else None)
            for row in range(starts[node], starts[node + 1])
        )
        for node, name in enumerate(snapshot.node_names)
    }
