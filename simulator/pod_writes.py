"""What kube-scheduler and Karpenter write about pods: conditions and events."""

from __future__ import annotations

from typing import Final, Literal
from uuid import uuid4

from simulator.cluster.kinds import EVENTS, PODS, Object
from simulator.cluster.store import Store

SCHEDULED: Final = "PodScheduled"
UNSCHEDULABLE: Final = "Unschedulable"


def event_write(
    store: Store, pod: Object, *, reason: str, message: str, by: str, kind: Literal["Normal", "Warning"] = "Normal"
) -> None:
    """Write an event on the pod."""
    meta, moment = pod["metadata"], store.moment()
    about = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    store.create(
        EVENTS,
        meta["namespace"],
        {
            "metadata": {"name": f"{meta['name']}.{uuid4().hex[:16]}"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": by},
            "reportingComponent": by,
        },
    )


def is_unschedulable(pod: Object) -> bool:
    """Whether a scheduler has called it so."""
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == SCHEDULED and one.get("reason") == UNSCHEDULABLE for one in conditions)


def is_waiting(pod: Object) -> bool:
    """Whether a scheduler has to find a node for it."""
    meta, spec = pod["metadata"], pod["spec"]
    return not (
        spec.get("nodeName")
        or spec.get("schedulingGates")
        or "deletionTimestamp" in meta
        or pod["status"].get("phase") != "Pending"
    )


def pod_now(store: Store, pod: Object) -> Object | None:
    """The pod as it is now; None once it is gone, or another one has its name."""
    meta = pod["metadata"]
    found = store.find(PODS, meta["namespace"], meta["name"])
    return found if found is not None and found["metadata"]["uid"] == meta["uid"] else None


def pod_delete(store: Store, pod: Object) -> None:
    """Delete the pod, where it is there; a bound one when its kubelet has ended it."""
    now = pod_now(store, pod)
    if now is not None:
        store.delete(PODS, now["metadata"]["namespace"], now["metadata"]["name"], grace=None)


def unschedulable_write(store: Store, pod: Object, *, why: str, by: str) -> None:
    """Call the pod unschedulable, with an event, where that says something new."""
    meta = pod["metadata"]
    conditions = pod["status"].get("conditions") or []
    old: Object = next((one for one in conditions if one["type"] == SCHEDULED), {})
    if old.get("reason") == UNSCHEDULABLE and old.get("message") == why:
        return
    new = {
        "type": SCHEDULED,
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": why,
        "lastTransitionTime": old.get("lastTransitionTime") or store.moment(),
    }
    others = [one for one in conditions if one["type"] != SCHEDULED]
    store.set_status(PODS, meta["namespace"], meta["name"], conditions=[*others, new])
    event_write(store, pod, reason="FailedScheduling", message=why, by=by, kind="Warning")
