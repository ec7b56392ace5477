"""Refuses pods that set result annotations, that request devices against the rules (DEV-3) or on a node of their own
choice (DEV-11), that begin to request devices after their creation (CLAIM-7), or that set `gpu.scheduling/pods`.

A missing claim is not refused: it may be created later, and until then the pod is unschedulable (CLAIM-3). Pods of
another scheduler that break our rules of its dialect pass with a warning. Our pods get warnings of what the engine
ignores (`claims.dialects.ignored`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from claims.admission.counted import names_another_amount, takes_some
from claims.admission.isolation import NO_ISOLATION, IsolationRules, isolation_refusal, isolation_warnings
from claims.admission.recognise import is_for_another, is_pod_create, is_pod_update, looks_ours
from claims.admission.trust import Trust, forbidden_changes
from claims.dialects.claim_manifest import ClaimDevices, ClaimSpec
from claims.dialects.ignored import sentences
from claims.dialects.parse import asks_for_devices, parse_pod
from claims.dialects.read_running import CONFIG_MIRROR
from claims.dialects.registry import REQUEST_ANNOTATIONS
from claims.dialects.request import DeviceRequest, Dialect, Refusal
from claims.queue_manifests import queue_named_by
from claims.queues import StoredQueues
from kube.admission import (
    AdmissionRequest,
    AdmissionResponse,
    ObjectInvalid,
    allowed,
    decode_object,
    forbidden,
    invalid,
)
from kube.keys import MODE_DEVICE_PLUGIN, MODE_LABEL, PODS_RESOURCE, QUEUE_LABEL, SCHEDULER_NAME
from kube.objects import ObjectMeta, Pod

KUBELETS_CHOOSE: Final = (
    "on nodes in mode device-plugin the kubelet chooses the GPUs; remove the node selector, or the constraints on which"
    " GPUs the pod gets"
)


def validate_pod(
    request: AdmissionRequest,
    *,
    trust: Trust,
    scheduler_name: str = SCHEDULER_NAME,
    queues: Callable[[], StoredQueues] | None = None,
    isolation: IsolationRules = NO_ISOLATION,
) -> AdmissionResponse:
    """The verdict on a pod that is created or updated. `queues`: called for a new one that gpuplane
    places and whose label names a queue; `isolation`: the settings.
    """
    creating = is_pod_create(request)
    if not creating and not is_pod_update(request):
        return allowed(request)
    try:
        pod = decode_object(request.object, Pod)
        old = ObjectMeta() if creating else decode_object(request.old_object, Pod).metadata
    except ObjectInvalid as error:
        ours = looks_ours(request.object) or looks_ours(request.old_object)
        return invalid(request, f"the pod is malformed: {error}") if ours else allowed(request)
    planted = forbidden_changes(old, pod.metadata, trust=trust, username=request.user_info.username)
    if planted:
        verb = "set" if creating else "changed"
        return forbidden(request, f"{planted[0]} is the result of an allocation; it is {verb} by the scheduler only")
    if not creating:
        return _check_update(request, pod, old, trust, scheduler_name)
    if _places_itself(pod, trust.may_place(request.user_info.username)):
        return forbidden(request, "spec.nodeName: only gpuplane places pods that ask for devices; leave it out")
    verdict = _check_dialect(request, pod, scheduler_name, isolation)
    named = queue_named_by(pod)
    if not (verdict.allowed and named and queues and _is_placed_here(pod, scheduler_name)):
        return verdict
    return _check_queue(request, named, queues(), verdict.warnings or [])


def _is_placed_here(pod: Pod, scheduler_name: str) -> bool:
    """Whether gpuplane chooses the pod's devices, so that its queue counts."""
    return asks_for_devices(pod) and not is_for_another(pod, scheduler_name=scheduler_name)


def _check_queue(
    request: AdmissionRequest, name: str, queues: StoredQueues, warnings: Sequence[str]
) -> AdmissionResponse:
    """Refuse a label that names a queue of other teams; warn of one that names none."""
    if barred := queues.barred(name, request.namespace):
        return forbidden(request, f"label {QUEUE_LABEL}: {barred}")
    if not queues.stored or name in queues.tree.queues:
        return allowed(request, warnings=warnings)
    return allowed(
        request, warnings=[*warnings, f"queue {name[:63]} does not exist: the pod goes to default until it does"]
    )


def _check_update(
    request: AdmissionRequest, pod: Pod, old: ObjectMeta, trust: Trust, scheduler_name: str
) -> AdmissionResponse:
    """Refuse a pod that begins to request devices by an annotation: its containers have no reference to the result."""
    added = sorted(REQUEST_ANNOTATIONS.intersection(pod.annotations).difference(old.annotations or {}))
    if not added or trust.may_place(request.user_info.username) or is_for_another(pod, scheduler_name=scheduler_name):
        return allowed(request)
    return forbidden(
        request,
        f"{added[0]} requests devices and cannot be added to an existing pod, whose containers have no reference to the"
        " allocated devices; set it when you create the pod",
    )


def _places_itself(pod: Pod, trusted: bool) -> bool:
    """Whether the pod names its node, and would run with devices that the ledger does not know."""
    # refusing the mirror of a static pod would only hide it
    return bool(pod.spec.node_name) and not trusted and CONFIG_MIRROR not in pod.annotations and asks_for_devices(pod)


def _check_dialect(
    request: AdmissionRequest, pod: Pod, scheduler_name: str, isolation: IsolationRules
) -> AdmissionResponse:
    refusal = parse_pod(pod, find_claim=_assume_claim)
    if takes_some(pod) if refusal is None else names_another_amount(pod):
        return forbidden(request, f"{PODS_RESOURCE} is set by gpuplane, to 1 a pod that asks for devices; leave it out")
    if not isinstance(refusal, Refusal):
        if refusal is not None and _cannot_be_kept_to(pod, refusal):
            return invalid(request, f"spec.nodeSelector: {KUBELETS_CHOOSE} (rule kubelet-chooses)")
        if refusal is None or is_for_another(pod, scheduler_name=scheduler_name):
            return allowed(request)
        unkept = isolation_refusal(pod, refusal, isolation)
        if unkept is not None:
            return invalid(request, f"{unkept.field}: {unkept.reason} (rule {unkept.rule})")
        return allowed(request, warnings=[*sentences(refusal.ignored), *isolation_warnings(pod, refusal)])
    if is_for_another(pod, scheduler_name=scheduler_name):
        return allowed(request, warnings=[refusal.reason])
    where = f"{refusal.field}: " if refusal.field else ""
    return invalid(request, f"{where}{refusal.reason} (rule {refusal.rule})")


def _cannot_be_kept_to(pod: Pod, request: DeviceRequest) -> bool:
    """Whether it requests particular GPUs on nodes where kubelets choose them."""
    selected = (pod.spec.node_selector or {}).get(MODE_LABEL)
    native = request.dialect == Dialect.NATIVE
    return native and not request.whole_native and selected == MODE_DEVICE_PLUGIN


def _assume_claim(_namespace: str, _name: str) -> ClaimSpec:
    """A claim for every name, since admission does not check that it exists."""
    return ClaimSpec(devices=ClaimDevices(count=1))
