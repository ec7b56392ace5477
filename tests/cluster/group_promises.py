"""The promise about GPUs behind reservation pods: the kubelet's table = reservation pods = groups = ledger.

`group_problems` is part of `invariants.problems`, pure and tested against a planted error of each kind in
tests/cluster/test_group_promises.py; `kubelet_problems` adds what the imitated kubelets know, for tests that have some.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.cluster.truth import GroupRow, PodView, Truth

RESERVED = "run.ai/reserve_for_gpu_index"
LABEL = "runai-gpu-group"
APP = "gpuplane-reservation"
KNOWN = ("ready", "unprotected")
"""States of groups whose GPUs are known."""
Records = Mapping[str, Mapping[str, Sequence[str]]]
"""Node → pod UID → its GPUs."""


def group_problems(truth: Truth) -> list[str]:
    """Every broken promise about groups as a sentence."""
    return [*_devices(truth), *_pods(truth), *_sharers(truth)]


def group_unrest(truth: Truth) -> list[str]:
    """Groups that are still on their way, and reservation pods that nobody asked for."""
    found = [f"{group.label} has not come to rest" for group in truth.groups if group.state not in KNOWN]
    names = {(group.pod_namespace, group.pod_name) for group in truth.groups}
    left = [pod for pod in truth.pods.values() if pod.labels.get("app") == APP]
    alone = [pod for pod in left if (pod.namespace, pod.name) not in names]
    return [*found, *(f"reservation pod {pod.label} has no group" for pod in alone)]


def kubelet_problems(truth: Truth, records: Records) -> list[str]:
    """What kubelets have given, against what ledger and reservation pods say. Raises nothing."""
    found: list[str] = []
    unprotected = {uuid for group in truth.groups if group.state == "unprotected" for uuid in group.uuids}
    for node, record in records.items():
        holders: dict[str, list[str]] = defaultdict(list)
        for uid, uuids in record.items():
            for uuid in uuids:
                holders[uuid].append(uid)
        found += [
            f"the kubelet of {node} gave {uuid} to {len(uids)} pods" for uuid, uids in holders.items() if len(uids) > 1
        ]
        found += _record_of(truth, node, record, unprotected)
        for group in truth.groups:
            if group.node == node and group.state == "ready" and set(record.get(group.pod_uid, ())) != set(group.uuids):
                given = sorted(record.get(group.pod_uid, ()))
                found.append(f"{group.label} has {sorted(group.uuids)}, its kubelet gave its pod {given}")
    return found


def _record_of(truth: Truth, node: str, record: Mapping[str, Sequence[str]], unprotected: set[str]) -> Iterator[str]:
    by_pod = {row.pod_uid: row for row in truth.allocations if row.pod_uid}
    reserving = {group.pod_uid for group in truth.groups}
    for uid, uuids in record.items():
        pod = truth.pods.get(uid)
        if pod is None or pod.finished:
            yield f"the kubelet of {node} keeps {sorted(uuids)} for pod {uid}, which is over"
        elif pod.labels.get("app") == APP or uid in reserving:
            if pod.annotations.get(RESERVED, "") != ",".join(uuids):
                yield f"{pod.label} tells {pod.annotations.get(RESERVED)}, its kubelet gave {list(uuids)}"
        elif uid not in by_pod:
            yield f"the kubelet of {node} gave {sorted(uuids)} to {pod.label}, of which the ledger knows nothing"
        elif not unprotected & set(uuids):
            held = sorted(grant.uuid for grant in by_pod[uid].grants)
            if held != sorted(uuids):
                yield f"the kubelet of {node} gave {sorted(uuids)} to {pod.label}, the ledger says {held}"


def _devices(truth: Truth) -> Iterator[str]:
    """A GPU names a group that lives, and a group has as many GPUs as its pod asks for: those that it told."""
    by_group: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device in truth.devices.values():
        if device.group:
            by_group[device.node, device.group].append(device.uuid)
    known = {(group.node, group.name) for group in truth.groups}
    for node, name in sorted(by_group.keys() - known):
        yield f"{sorted(by_group[node, name])} of {node} name the group {name}, which there is not"
    told: dict[str, list[str]] = defaultdict(list)
    for group in truth.groups:
        has = sorted(by_group[group.node, group.name])
        if len(has) != group.gpus:
            yield f"{group.label} asks for {group.gpus} GPUs and has {has}"
        elif group.state in KNOWN and has != sorted(group.uuids):
            yield f"{group.label} was told {sorted(group.uuids)} and has {has}"
        for uuid in group.uuids:
            told[uuid].append(group.name)
    for uuid, groups in told.items():
        if len(groups) > 1:
            yield f"{uuid} was told to the groups {', '.join(sorted(groups))}"


def _pods(truth: Truth) -> Iterator[str]:
    """A ready group has its reservation pod, which runs on its node and tells its GPUs."""
    for group in truth.groups:
        if group.state != "ready":
            continue
        pod = truth.pods.get(group.pod_uid)
        if pod is None or pod.finished or pod.deleted:
            yield f"{group.label} has no reservation pod"
        elif (pod.node, pod.labels.get(LABEL)) != (group.node, group.name):
            yield f"{group.label} has the pod {pod.label} of group {pod.labels.get(LABEL)} on {pod.node}"
        elif set(filter(None, pod.annotations.get(RESERVED, "").split(","))) != set(group.uuids):
            yield f"{group.label} has {sorted(group.uuids)}, its pod tells {pod.annotations.get(RESERVED)}"


def _sharers(truth: Truth) -> Iterator[str]:
    """Who holds a GPU of a group carries the group's label, and nobody has a group that holds none of its GPUs."""
    groups = {(group.node, group.name): group for group in truth.groups}
    for row in truth.allocations:
        pod = truth.pods.get(row.pod_uid)
        if row.state != "bound" or pod is None:
            continue
        held = {truth.devices[grant.device].group for grant in row.grants if grant.device in truth.devices} - {""}
        labels = named_groups(pod)
        if labels != held and (held or labels & {name for node, name in groups if node == row.node}):
            yield f"{row.label} is on GPUs of the groups {sorted(held)}, its pod names {sorted(labels)}"
    yield from _holders(truth, groups)


def _holders(truth: Truth, groups: Mapping[tuple[str, str], GroupRow]) -> Iterator[str]:
    for row in truth.allocations:
        for grant in row.grants:
            device = truth.devices.get(grant.device)
            group = groups.get((device.node, device.group)) if device is not None else None
            if group is not None and group.shared is grant.whole:
                yield f"{row.label} has {grant.uuid} {'whole' if grant.whole else 'in part'}, unlike {group.label}"


def named_groups(pod: PodView) -> set[str]:
    """The groups that a pod's labels name."""
    return {value for key, value in pod.labels.items() if key == LABEL or key.startswith(f"{LABEL}/")}
