"""Refuses Bindings of device pods that gpuplane did not make, and Bindings that plant an allocation (DEV-11).

Called by the view of `/webhooks/bindings/validate`, which looks the pod up. Kept true: a Binding's annotations
and labels are merged into the pod without pod admission, so the keys guarded there are guarded here;
Bindings of other pods pass, also when the pod cannot be looked up, since all scheduling depends on it.

Where anybody may ask, the verdict depends on the review alone, but for whoever names the pod by its UID as well
(`binding_uid`): that cannot be guessed, so the answer tells nothing of a pod to those who cannot read it. A
Binding of another UID passes here, since the API server refuses it by itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from claims.admission.recognise import CREATE, is_meant_for_us
from claims.admission.trust import Trust, forbidden_changes
from claims.dialects.parse import asks_for_devices, foreign_dialect
from kube.admission import (
    AdmissionRequest,
    AdmissionResponse,
    ObjectInvalid,
    allowed,
    decode_object,
    forbidden,
    invalid,
)
from kube.keys import SCHEDULER_NAME
from kube.objects import ObjectMeta, Pod

UNNAMED: Final = (
    "the Binding does not name its pod's UID (metadata.uid), so gpuplane cannot check it; have the scheduler name it, "
    "or let its user past by the chart's webhooks.bindings.exemptUsers"
)


class _Binding(msgspec.Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


def is_binding(request: AdmissionRequest) -> bool:
    """Whether a Binding is being created."""
    return request.kind.kind == "Binding" and request.operation == CREATE


def binding_uid(request: AdmissionRequest) -> str:
    """The UID by which the Binding names its pod; empty where it names none, or cannot be read."""
    try:
        return decode_object(request.object, _Binding).metadata.uid
    except ObjectInvalid:
        return ""


def validate_unnamed(request: AdmissionRequest, *, everywhere: bool = True) -> AdmissionResponse:
    """The verdict on a Binding that is not looked up since it names no UID: the same for every pod."""
    return forbidden(request, UNNAMED) if everywhere else allowed(request, warnings=[UNNAMED])


def validate_binding(
    request: AdmissionRequest,
    *,
    pod: Pod | None,
    trust: Trust,
    everywhere: bool = True,
    scheduler_name: str = SCHEDULER_NAME,
) -> AdmissionResponse:
    """The verdict on a Binding; `pod` is the pod it binds, None where it is not known.

    `everywhere`: whatever asks for devices is ours to bind, not only what is meant for us (setting GPUPLANE_GUARD).
    """
    username = request.user_info.username
    if not is_binding(request) or trust.is_own(username):
        return allowed(request)
    ours = pod is not None and asks_for_devices(pod)
    if pod is not None and not everywhere:
        ours = ours and is_meant_for_us(pod, scheduler_name=scheduler_name)
    try:
        binding = decode_object(request.object, _Binding)
    except ObjectInvalid as error:
        return invalid(request, f"the Binding is malformed: {error}") if ours else allowed(request)
    planted = forbidden_changes(ObjectMeta(), binding.metadata, trust=trust, username=username)
    if planted:
        return forbidden(request, f"{planted[0]} is the result of an allocation; it is set by the scheduler only")
    if pod is None or not ours:
        return allowed(request)
    dialect = foreign_dialect(pod)
    if dialect is not None and trust.is_scheduler(dialect, username):
        return allowed(request)
    return forbidden(request, "the pod asks for devices; only gpuplane binds such pods")
