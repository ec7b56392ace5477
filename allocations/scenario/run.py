"""Runs a scenario: takes the devices of running pods, then places each waiting pod in turn.

Called by `manage.py simulate`, REST and the what-if page. The engine decides over the nodes that kube-scheduler would
pass to filter, and a Decision is applied by the ledger's rules (whole: core 100 and all memory). Pure: no Django, no
clock. Invariants: the same scenario gives the same result; what is wrong with one pod affects no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from allocations.engine.build import DeviceRow, NodeRow, build_snapshot
from allocations.engine.needs import amounts
from allocations.engine.patch import patch, take
from allocations.engine.plan import plan, verdicts_of
from allocations.engine.reasons import summary_text
from allocations.engine.snapshot import DEVICE_PLUGIN, EXCLUSIVE, NO_MEMORY, Snapshot, Withheld
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.result import DeviceResult, DeviceUsed, PodDecision, Result
from allocations.scenario.rules import NodeRules
from claims.dialects.adopted import AdoptedDevice, Unreadable
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest, Refusal
from kube.device_types import ledger_type, mig_type

if TYPE_CHECKING:
    from allocations.engine.decision import Decision, Verdicts
    from claims.dialects.request import Parsed
    from kube.objects import Pod
    from nodes.inventory import NodeShape

NOTHING_ASKED = "asks for no devices: any node will do"


def run_scenario(scenario: Scenario) -> Result:
    """The decisions and the fleet after them."""
    snapshot = snapshot_of(scenario.nodes)
    problems = list(scenario.problems)
    living = [pod for pod in scenario.pods if not pod.finished]
    for pod in living:
        if pod.spec.node_name:
            snapshot, problem = _adopt(snapshot, scenario, pod)
            if problem:
                problems.append(f"{metadata_label(pod.metadata)}: {problem}")
    snapshot = _without_held_parents(snapshot, scenario.nodes)
    decisions = []
    rules = NodeRules(scenario.nodes)
    for pod in living:
        if not pod.spec.node_name:
            snapshot, decision = _place(snapshot, scenario, pod, rules)
            decisions.append(decision)
    return Result(decisions=tuple(decisions), fleet=_fleet(snapshot), problems=tuple(problems))


def snapshot_of(nodes: Iterable[NodeShape]) -> Snapshot:
    """The empty fleet; device ids number the devices in the order of the file."""
    rows = []
    number = 0
    for node in nodes:
        devices = []
        sick = {device.uuid for device in node.devices if not device.healthy}
        for device in node.devices:
            number += 1
            devices.append(
                DeviceRow(
                    device_id=number,
                    uuid=device.uuid,
                    type=mig_type(device.profile) if device.parent else device.type,
                    minor=device.minor,
                    model=device.model,
                    memory_bytes=device.memory,
                    numa=device.numa,
                    pcie=device.pcie,
                    healthy=device.healthy and device.parent not in sick,
                    kept=Withheld.MIG if device.mig else Withheld.NOT,
                )
            )
        mode = EXCLUSIVE if node.mode == "exclusive" else DEVICE_PLUGIN
        rows.append(NodeRow(name=node.name, mode=mode, links=node.links, devices=tuple(devices)))
    return build_snapshot(rows)


def _without_held_parents(snapshot: Snapshot, nodes: Iterable[NodeShape]) -> Snapshot:
    """The snapshot with the MIG instances of GPUs that are held whole marked unhealthy: nothing new is placed there."""
    held = (snapshot.core_used > 0) | (snapshot.memory_used > 0)
    row_of = snapshot.index.row_of_uuid
    instances = [device for node in nodes for device in node.devices if device.parent]
    rows = [row_of[one.uuid] for one in instances if one.parent in row_of and held[row_of[one.parent]]]
    columns = (snapshot.device_id, snapshot.core_used, snapshot.memory_used)
    uses = zip(*(column[rows].tolist() for column in columns), strict=True)
    return patch(snapshot, [(device, core, memory, False) for device, core, memory in uses])


def _parsed(scenario: Scenario, pod: Pod) -> Parsed:
    parsed = parse_pod(pod, find_claim=lambda namespace, name: scenario.claims.get((namespace, name)))
    return parsed.under(scenario.share) if isinstance(parsed, DeviceRequest) else parsed


def _place(snapshot: Snapshot, scenario: Scenario, pod: Pod, rules: NodeRules) -> tuple[Snapshot, PodDecision]:
    label = metadata_label(pod.metadata)
    parsed = _parsed(scenario, pod)
    if parsed is None:
        return snapshot, PodDecision(label, None, (), {}, NOTHING_ASKED)
    if isinstance(parsed, Refusal):
        names = snapshot.node_names
        summary = summary_text(len(names), [(parsed.reason, len(names))]) if names else parsed.reason
        return snapshot, PodDecision(label, None, (), dict.fromkeys(names, parsed.reason), summary)
    refused = rules.refused(pod.spec)
    candidates = [row for row, name in enumerate(snapshot.node_names) if name not in refused] if refused else None
    decision = plan(snapshot, parsed, candidates=candidates)
    uses = [(grant.device_id, grant.core_percent, grant.memory_bytes or 0) for grant in decision.grants]
    return take(snapshot, uses), _pod_decision(label, decision, verdicts_of(decision, snapshot), refused)


def _pod_decision(label: str, decision: Decision, verdicts: Verdicts, refused: Mapping[str, str]) -> PodDecision:
    """`refused`: node → why the pod's rules exclude it."""
    devices = tuple(
        DeviceResult(grant.uuid, grant.minor, grant.type, grant.core_percent, grant.memory_bytes)
        for grant in decision.grants
    )
    reasons = {name: reason.text for name, reason in verdicts.refused()} | dict(refused)
    summary = decision.summary
    if decision.node is None and refused:
        summary = summary_text(len(reasons), Counter(reasons.values()).items())
    return PodDecision(label, decision.node, devices, reasons, summary)


def _adopt(snapshot: Snapshot, scenario: Scenario, pod: Pod) -> tuple[Snapshot, str]:
    """(the snapshot with all of a running pod's devices taken, or none; what is wrong, if anything)."""
    parsed = _parsed(scenario, pod)
    found = read_allocation(pod, request=parsed if isinstance(parsed, DeviceRequest) else None)
    if found is None:
        return snapshot, "" if parsed is None else "runs without an allocation annotation; its devices are not known"
    if isinstance(found, Unreadable):
        return snapshot, found.problem
    node = snapshot.node_index.get(found.node)
    if node is None:
        return snapshot, f"runs on {found.node}, which is not in the scenario"
    uses: list[tuple[int, int, int]] = []
    for device in found.devices:
        row = _row(snapshot, node, device)
        if row is None:
            return snapshot, f"holds {_named(device)}, which {found.node} does not have"
        total = int(snapshot.memory_total[row])
        taken = amounts(_ask(device), total)
        if taken is None or taken[1] > total:
            return snapshot, f"holds more of {_named(device)} on {found.node} than it has"
        core, memory = int(snapshot.core_used[row]) + taken[0], int(snapshot.memory_used[row]) + taken[1]
        if core > 100 or memory > total or (device.whole and (core > taken[0] or memory > taken[1])):
            return snapshot, f"holds {_named(device)} on {found.node}, which others hold already"
        uses.append((int(snapshot.device_id[row]), *taken))
    return take(snapshot, uses), ""


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
