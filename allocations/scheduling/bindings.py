"""The Binding of an allocation's pod, and the leases of its devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings

from allocations.leases.port import Want, lease_name
from allocations.ledger import Live
from claims.dialects.request import Dialect
from claims.dialects.write_back import VisibleDevices, binding_annotations
from kube import pods
from kube.device_types import GPU
from kube.karpenter import DO_NOT_DISRUPT
from kube.keys import ALLOCATED, ATTEMPT, CHOSEN_BY, KAI_GPU_GROUP_LABEL, KUBELET
from kube.names import is_label_value
from kube.objects import Pod


def leases_needed(live: Live) -> list[Want]:
    """The leases of an allocation, one a device."""
    return [
        Want(lease_name(grant.type, live.node, grant.minor), live.node, grant.uuid, grant.whole)
        for grant in live.grants
    ]


def binding_of(live: Live, *, pod_version: str = "") -> pods.Binding:
    """The Binding of an allocation's pod. `pod_version`: it fails if the pod has another by then."""
    if live.request.by_kubelet:
        annotations = {CHOSEN_BY: KUBELET}
    else:
        annotations = binding_annotations(
            request=live.request,
            node=live.node,
            grants=live.grants,
            visible=VisibleDevices.UUID
            if live.by_reservation_pods
            else VisibleDevices(settings.GPUPLANE_VISIBLE_DEVICES),
            memory_total=live.memory_total.get,
            bus_id=live.bus_id.get,
        )
    if settings.GPUPLANE_DO_NOT_DISRUPT and any(grant.type == GPU for grant in live.grants):
        annotations = {**annotations, DO_NOT_DISRUPT: "true"}
    holder = live.holder
    return pods.Binding(
        namespace=holder.namespace,
        name=holder.pod_name,
        uid=holder.pod_uid,
        node=live.node,
        annotations={**annotations, ATTEMPT: attempt_annotation(live)},
        labels=group_labels(live),
        version=pod_version,
    )


def group_labels(live: Live) -> dict[str, str]:
    """KAI's labels of the groups that a pod shares GPUs with, where reservation pods keep them, or the pod is KAI's.

    On a node where gpuplane owns the GPUs each GPU is its own group, by its UUID.
    """
    groups: Sequence[str] = live.groups if live.by_reservation_pods else ()
    if not groups and live.request.dialect == Dialect.KAI:
        groups = sorted(grant.uuid for grant in live.grants if grant.type == GPU and is_label_value(grant.uuid))
    if len(groups) == 1:
        return {KAI_GPU_GROUP_LABEL: groups[0]}
    return {f"{KAI_GPU_GROUP_LABEL}/{group}": group for group in groups}


def is_ours(pod: Pod, live: Live) -> bool:
    """Whether the pod, as read, was bound by a Binding of this allocation, whichever attempt sent it."""
    if pod.metadata.uid != live.holder.pod_uid or pod.spec.node_name != live.node:
        return False
    mark = pod.annotations.get(ATTEMPT)
    if mark is not None:
        return mark.partition("/")[0] == str(live.id)
    wanted = binding_of(live).annotations
    return all(pod.annotations.get(key) == wanted[key] for key in (ALLOCATED, CHOSEN_BY) if key in wanted)


def attempt_annotation(live: Live) -> str:
    """The value of `gpu.scheduling/attempt` on a pod that this attempt binds."""
    return f"{live.id}/{live.bind_attempt}"
