"""The fleet as it is now, as a scenario: the starting point of a what-if.

Called by REST and the what-if page. Invariants: every held device is held in the scenario too; of pods in namespaces
that the actor does not see only their amounts, queue and age are included; what a scenario would refuse is left
out. A node that is not ready is cordoned, a device that is withheld is not healthy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from access.actors import Actor
from access.errors import TooLarge
from allocations.choices import LIVE, State
from allocations.engine.decision import Grant
from allocations.gang_queues import counts_in, read_gang_queues
from allocations.ledger.reads import request_of
from allocations.models import Allocation
from allocations.scenario import Limits
from claims.dialects.device_json import own_amounts
from claims.dialects.grants import Placed
from claims.dialects.write_back import AMOUNTS
from claims.kinds import CLAIM, GANG, QUEUE
from claims.membership import Membership
from claims.queues import stored_queues
from claims.selectors import manifest_list
from kube.device_types import GPU, is_mig
from kube.keys import ALLOCATED, GANG_LABEL, PREEMPTIBLE_LABEL, QUEUE_LABEL
from kube.quantities import format_bytes
from nodes.choices import NodeState, Presence
from nodes.models import Device, Node

HIDDEN: Final = "hidden"
"""Namespace of the pods that the actor does not see."""

Manifest = dict[str, Any]


def live_scenario(*, actor: Actor, limits: Limits) -> dict[str, list[Manifest]]:
    """Nodes, claims, gangs, queues and running pods. Raises TooLarge for a fleet above the limits."""
    shown = Node.objects.exclude(state=NodeState.GONE)
    live = Allocation.objects.filter(state__in=LIVE, node__in=shown)
    devices = Device.objects.filter(node__in=shown).exclude(presence=Presence.REMOVED).order_by("node__name", "minor")
    for what, count, most in (
        ("nodes", shown.count(), limits.nodes),
        ("devices", devices.count(), limits.devices),
        ("pods", live.count(), limits.pods),
    ):
        if count > most:
            raise TooLarge(f"the fleet has {count} {what}, and at most {most} are taken here", field=what, rule="most")
    by_node: defaultdict[int, list[Device]] = defaultdict(list)
    for device in _once(devices.iterator(chunk_size=2000)):
        by_node[device.node_id].append(device)
    return {
        "nodes": [_node(node, by_node[node.pk]) for node in shown.order_by("name").iterator(chunk_size=500)],
        "queues": [{"metadata": {"name": row.name}, "spec": row.spec} for row in manifest_list(QUEUE, actor=actor)],
        "gangs": _manifests(GANG, actor),
        "claims": _manifests(CLAIM, actor),
        "pods": list(_pods(live.select_related("node").prefetch_related("devices__device"), actor)),
    }


def scenario_text(scenario: Mapping[str, Sequence[Manifest]]) -> str:
    """The scenario as YAML to read and change: a line for each field, and for each device."""
    lines: list[str] = []
    for section, entries in scenario.items():
        lines.append(f"{section}:" if entries else f"{section}: []")
        for entry in entries:
            for place, (key, value) in enumerate(entry.items()):
                start = "  - " if place == 0 else "    "
                if key == "devices":
                    lines.append(f"{start}{key}:")
                    lines += [f"      - {_flow(one)}" for one in value]
                else:
                    lines.append(f"{start}{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """JSON, which is YAML."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _once(devices: Iterator[Device]) -> Iterator[Device]:
    """Without those that a scenario would refuse: a UUID that another node has reported too, a GPU without its size."""
    seen: set[str] = set()
    for device in devices:
        known = device.type != GPU or (device.model and device.memory_bytes)
        if device.uuid not in seen and known:
            seen.add(device.uuid)
            yield device


def _node(node: Node, devices: Sequence[Device]) -> Manifest:
    gpus = {device.minor for device in devices if device.type == GPU}
    uuids = {device.uuid for device in devices}
    found: Manifest = {"name": node.name, "mode": node.mode}
    if node.labels:
        found["labels"] = node.labels
    if node.taints:
        found["taints"] = node.taints
    if node.unschedulable or node.state != NodeState.READY:
        found["unschedulable"] = True
    found["devices"] = [_device(device) for device in devices if not device.parent or device.parent in uuids]
    if links := [link for link in node.links if link[0] in gpus and link[1] in gpus]:
        found["links"] = links
    return found


def _device(device: Device) -> Manifest:
    instance = is_mig(device.type)
    found: Manifest = {"minor": device.minor, "type": GPU if instance else device.type, "uuid": device.uuid}
    given = {
        "model": device.model,
        "memory": format_bytes(device.memory_bytes) if device.memory_bytes else "",
        "numa": device.numa if device.numa >= 0 else "",
        "pcie": device.pcie,
        "busid": device.bus_id,
        "parent": device.parent if instance else "",
        "profile": device.profile if instance else "",
    }
    found |= {key: value for key, value in given.items() if value != ""}
    usable = device.presence == Presence.PRESENT and not (device.stranger or device.conflict or device.closed)
    if not (device.healthy and usable):
        found["healthy"] = False
    return found


def _manifests(kind: Any, actor: Actor) -> list[Manifest]:
    return [
        {"metadata": {"name": row.name, "namespace": row.namespace}, "spec": row.spec}
        for row in manifest_list(kind, actor=actor)
    ]


def _pods(live: Any, actor: Actor) -> Iterator[Manifest]:
    queues = stored_queues()
    by_gang = read_gang_queues(queues) if queues.stored else {}
    names: set[tuple[str, str]] = set()
    for number, row in enumerate(live.order_by("created_at", "id")):
        seen = actor.sees(row.namespace)
        namespace, name = (row.namespace, row.pod_name) if seen else (HIDDEN, "")
        name = name or f"holder-{number}"
        if (namespace, name) in names:
            name = f"{name[:230]}-{number}"
        names.add((namespace, name))
        labels = {}
        if queues.stored:
            labels[QUEUE_LABEL] = counts_in(Membership(row.queue, row.gang), row.namespace, queues, by_gang)
        if row.gang and seen:
            labels[GANG_LABEL] = row.gang
        if not (row.preemptible and row.pod_uid):
            labels[PREEMPTIBLE_LABEL] = "false"
        created = row.pod_created or row.created_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata: Manifest = {"namespace": namespace, "name": name, "creationTimestamp": created}
        if row.leaving_at is not None or row.state == State.RELEASING:
            metadata["deletionTimestamp"] = row.changed_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata |= {"labels": labels} if labels else {}
        metadata["annotations"] = _held(row)
        yield {"metadata": metadata, "spec": {"nodeName": row.node.name, "priority": row.pod_priority}}


def _held(row: Allocation) -> dict[str, str]:
    """The result annotations, in gpuplane's own form, which contains every amount."""
    totals = {(one.type, one.minor): one.device.memory_bytes for one in row.devices.all() if one.device is not None}
    grants = [
        Grant(
            one.device_id or 0,
            one.uuid,
            one.type,
            one.minor,
            one.core_percent,
            one.memory_bytes if totals.get((one.type, one.minor)) else None,
            one.whole,
        )
        for one in row.devices.all()
    ]
    grants.sort(key=lambda one: (one.type != GPU, one.type, one.minor))
    placed = Placed(request_of(row.request), row.node.name, grants, totals.get, None)
    first = grants[0].type if grants else GPU
    minors = ",".join(str(one.minor) for one in grants if one.type == first)
    return {ALLOCATED: f"{row.node.name}:{minors}", AMOUNTS: own_amounts(placed)}
