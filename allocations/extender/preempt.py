"""preempt: keep only nodes where the engine finds a set once the victims' devices are free (DESIGN §4).

An echo would evict pods for nothing, again and again. The victims' devices come from the ledger by
pod UID. The answer is in the Meta form (pods by UID), as kube-scheduler expects from every extender.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from django.db.models import QuerySet

from allocations import fleet, ledger
from allocations.asking import pod_asks
from allocations.choices import LIVE
from allocations.engine.plan import plan
from allocations.extender.identity import is_uid, pod_problem
from allocations.extender.wire import POD, UNDECODABLE, PreemptArgs, is_there
from allocations.models import AllocationDevice
from claims.dialects import asks_for_devices
from claims.dialects.request import Refusal

UIDS_A_QUERY = 5_000
"""Databases bound the parameters of a statement."""


def preempt_pod(args: PreemptArgs) -> bytes:
    """ExtenderPreemptionResult for ExtenderPreemptionArgs."""
    offered = _offered(args)
    pod = None
    if is_there(args.Pod):
        try:
            pod = POD.decode(args.Pod)
        except UNDECODABLE:
            return _answer(offered, ())
    if pod is None:
        return _answer(offered, tuple(offered))
    if pod_problem(pod):
        return _answer(offered, () if asks_for_devices(pod) else tuple(offered))
    asks = pod_asks(pod)
    if asks is None:
        return _answer(offered, tuple(offered))
    if isinstance(asks, Refusal):
        return _answer(offered, ())
    picture, now = fleet.current()
    own = ledger.read_own(pod.metadata.uid, now).live
    freed = _amounts({uid for uids, _ in offered.values() for uid in uids})
    kept = []
    for node, (uids, _) in offered.items():
        if node not in picture.node_index:
            continue
        back: dict[int, tuple[int, int]] = {}
        for uid in uids:
            for device_id, core, memory in freed.get(uid, ()):
                before = back.get(device_id, (0, 0))
                back[device_id] = (before[0] + core, before[1] + memory)
        decision = plan(
            picture,
            asks.request,
            candidates=[picture.node_index[node]],
            own=None if own is None else own.amounts,
            freed=back,
        )
        if decision.node is not None:
            kept.append(node)
    return _answer(offered, kept)


def _offered(args: PreemptArgs) -> dict[str, tuple[tuple[str, ...], int]]:
    """Node → (UIDs of its victims, violated disruption budgets), from either form."""
    offered: dict[str, tuple[tuple[str, ...], int]] = {}
    for node, meta in (args.NodeNameToMetaVictims or {}).items():
        offered[node] = (tuple(pod.UID for pod in meta.Pods or ()), meta.NumPDBViolations)
    for node, victims in (args.NodeNameToVictims or {}).items():
        offered[node] = (tuple(pod.metadata.uid for pod in victims.Pods or ()), victims.NumPDBViolations)
    return offered


def _amounts(uids: set[str]) -> dict[str, list[tuple[int, int, int]]]:
    """Pod UID → (device id, core percent, bytes) of what it holds."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    asked = sorted(filter(is_uid, uids))
    for start in range(0, len(asked), UIDS_A_QUERY):
        rows: QuerySet[AllocationDevice, tuple[str, int, int, int]] = AllocationDevice.objects.filter(
            live=True, allocation__state__in=LIVE, allocation__pod_uid__in=asked[start : start + UIDS_A_QUERY]
        ).values_list("allocation__pod_uid", "device_id", "core_percent", "memory_bytes")
        for uid, device_id, core, memory in rows:
            found.setdefault(uid, []).append((device_id, core, memory))
    return found


def _answer(offered: Mapping[str, tuple[tuple[str, ...], int]], kept: Sequence[str]) -> bytes:
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in offered[node][0]], "NumPDBViolations": offered[node][1]}
                for node in kept
            }
        }
    )
