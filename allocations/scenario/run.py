"""Runs a scenario: adopts what runs, then filters, holds and binds each pod in turn, on nothing but the file.

Called by `manage.py simulate`, REST and the what-if page. The very engine and dialects decide, over the nodes that kube-scheduler would ask
about, and a Decision is applied by the ledger's rules (whole: core 100 and all memory). Pure: no Django, no
clock. Kept true: the same scenario gives the same result; one pod's trouble stops nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from allocations.engine.build import DeviceRow, DeviceUse, NodeRow, build_picture, patch, take
from allocations.engine.needs import amounts
from allocations.engine.picture import DEVICE_PLUGIN, EXCLUSIVE, NO_MEMORY, Picture, Withheld
from allocations.engine.plan import plan
from allocations.engine.reasons import summary_text
from allocations.scenario.parse import Scenario, metadata_label
from allocations.scenario.result import DeviceResult, DeviceUsed, PodDecision, Result
from allocations.scenario.rules import NodeRules
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import AdoptedDevice, Unreadable, read_allocation
from claims.dialects.request import DeviceAsk, DeviceRequest, Refusal
from kube.device_types import ledger_type, mig_type

if TYPE_CHECKING:
    from allocations.engine.decision import Decision
    from claims.dialects.gpuclaim import ClaimSpec
    from claims.dialects.request import Parsed
    from kube.objects import Pod
    from nodes.inventory import NodeShape

NOTHING_ASKED = "asks for no devices: any node will do"


def run_scenario(scenario: Scenario) -> Result:
    """The decisions and the fleet after them."""
    picture = picture_of(scenario.nodes)
    problems = list(scenario.problems)
    living = [pod for pod in scenario.pods if not pod.finished]
    for pod in living:
        if pod.spec.node_name:
            picture, problem = _adopt(picture, scenario, pod)
            if problem:
                problems.append(f"{metadata_label(pod.metadata)}: {problem}")
    picture = _without_held_gpus(picture, scenario.nodes)
    decisions = []
    rules = NodeRules(scenario.nodes)
    for pod in living:
        if not pod.spec.node_name:
            picture, decision = _place(picture, scenario, pod, rules)
            decisions.append(decision)
    return Result(decisions=tuple(decisions), fleet=_fleet(picture), problems=tuple(problems))


def picture_of(nodes: Iterable[NodeShape]) -> Picture:
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
    return build_picture(rows)


def _without_held_gpus(picture: Picture, nodes: Iterable[NodeShape]) -> Picture:
    """The picture without the MIG instances of GPUs that are held themselves: these are given to nobody new meanwhile."""
    parents = [device.parent for node in nodes for device in node.devices]
    if not any(parents):
        return picture
    held = {
        uuid
        for uuid, core, memory in zip(picture.device_uuid, picture.core_used, picture.memory_used, strict=True)
        if core or memory
    }
    rows = {uuid: row for row, uuid in enumerate(picture.device_uuid)}
    shut = [rows[device.uuid] for node in nodes for device in node.devices if device.parent in held]
    return patch(
        picture,
        [
            DeviceUse(int(picture.device_id[row]), int(picture.core_used[row]), int(picture.memory_used[row]), False)
            for row in shut
        ],
    )


def _parsed(scenario: Scenario, pod: Pod) -> Parsed:
    def find_claim(namespace: str, name: str) -> ClaimSpec | Refusal | None:
        return scenario.claims.get((namespace, name))

    parsed = parse_pod(pod, find_claim=find_claim)
    return parsed.under(scenario.share) if isinstance(parsed, DeviceRequest) else parsed


def _place(picture: Picture, scenario: Scenario, pod: Pod, rules: NodeRules) -> tuple[Picture, PodDecision]:
    label = metadata_label(pod.metadata)
    parsed = _parsed(scenario, pod)
    if parsed is None:
        return picture, PodDecision(label, None, (), {}, NOTHING_ASKED)
    if isinstance(parsed, Refusal):
        names = picture.node_names
        summary = summary_text(len(names), [(parsed.reason, len(names))]) if names else parsed.reason
        return picture, PodDecision(label, None, (), dict.fromkeys(names, parsed.reason), summary)
    elsewhere = rules.refused(pod.spec)
    asked = [row for row, name in enumerate(picture.node_names) if name not in elsewhere] if elsewhere else None
    decision = plan(picture, parsed, candidates=asked)
    uses = [(grant.device_id, grant.core_percent, grant.memory_bytes or 0) for grant in decision.grants]
    return take(picture, uses), _told(label, decision, elsewhere)


def _told(label: str, decision: Decision, elsewhere: Mapping[str, str]) -> PodDecision:
    """`elsewhere`: node → why the pod may not go there whatever it has; the engine was not asked about those."""
    devices = tuple(
        DeviceResult(grant.uuid, grant.minor, grant.type, grant.core_percent, grant.memory_bytes)
        for grant in decision.grants
    )
    reasons = {name: reason.text for name, reason in decision.refused()} | dict(elsewhere)
    summary = decision.summary
    if decision.node is None and elsewhere:
        summary = summary_text(len(reasons), Counter(reasons.values()).items())
    return PodDecision(label, decision.node, devices, reasons, summary)


def _adopt(picture: Picture, scenario: Scenario, pod: Pod) -> tuple[Picture, str]:
    """The picture with a running pod's devices taken, all of them or none, and what is wrong, if anything."""
    parsed = _parsed(scenario, pod)
    found = read_allocation(pod, request=parsed if isinstance(parsed, DeviceRequest) else None)
    if found is None:
        return picture, "" if parsed is None else "runs without an allocation annotation; its devices are not known"
    if isinstance(found, Unreadable):
        return picture, found.problem
    node = picture.node_index.get(found.node)
    if node is None:
        return picture, f"runs on {found.node}, which is not in the scenario"
    uses: list[tuple[int, int, int]] = []
    for device in found.devices:
        row = _row(picture, node, device)
        if row is None:
            return picture, f"holds {_named(device)}, which {found.node} does not have"
        total = int(picture.memory_total[row])
        taken = amounts(_ask(device), total)
        if taken is None or taken[1] > total:
            return picture, f"holds more of {_named(device)} on {found.node} than it has"
        core, memory = int(picture.core_used[row]) + taken[0], int(picture.memory_used[row]) + taken[1]
        if core > 100 or memory > total or (device.whole and (core > taken[0] or memory > taken[1])):
            return picture, f"holds {_named(device)} on {found.node}, which others hold already"
        uses.append((int(picture.device_id[row]), *taken))
    return take(picture, uses), ""


def _row(picture: Picture, node: int, device: AdoptedDevice) -> int | None:
    for row in range(int(picture.node_start[node]), int(picture.node_start[node + 1])):
        if ledger_type(picture.types[picture.device_type[row]]) != device.type:
            continue
        if device.uuid == picture.device_uuid[row] or (
            device.minor is not None and device.minor == picture.device_minor[row]
        ):
            return row
    return None


def _ask(device: AdoptedDevice) -> DeviceAsk:
    return DeviceAsk(device.type, 1, device.core_percent, device.memory_bytes, device.memory_ratio)


def _named(device: AdoptedDevice) -> str:
    return device.uuid or f"{device.type} {device.minor}"


def _fleet(picture: Picture) -> dict[str, tuple[DeviceUsed, ...]]:
    core, memory = picture.core_used.tolist(), picture.memory_used.tolist()
    total, starts = picture.memory_total.tolist(), picture.node_start.tolist()
    return {
        name: tuple(
            DeviceUsed(picture.device_uuid[row], core[row], memory[row] if total[row] != NO_MEMORY else None)
            for row in range(starts[node], starts[node + 1])
        )
        for node, name in enumerate(picture.node_names)
    }
