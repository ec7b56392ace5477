"""Refuses Bindings of device pods that gpuplane did not create, and Bindings that set result annotations (DEV-11).

Invariants: a Binding's annotations and labels are merged into the pod without pod admission, so the same keys are
guarded here; Bindings of pods without devices pass.

For an anonymous client the pod is looked up only by the UID in the Binding (`binding_uid`), which cannot be guessed, so
that answers disclose nothing about pods. A Binding with a wrong UID passes, since the API server refuses it.
"""

from __future__ import annotations

from typing import Final

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
from kube.objects import Named, ObjectMeta, Pod

UNNAMED: Final = (
    "the Binding does not name its pod's UID (metadata.uid), so gpuplane cannot check it; have the scheduler set it, "
    "or add the scheduler's user to the chart's webhooks.bindings.exemptUsers"
)


def is_binding(request: AdmissionRequest) -> bool:
    """Whether a Binding is created."""
    return request.kind.kind == "Binding" and request.operation == CREATE


def binding_uid(request: AdmissionRequest) -> str:
    """The pod's UID in the Binding; empty if missing or unreadable."""
    try:
        return decode_object(request.object, Named).metadata.uid
    except ObjectInvalid:
        return ""


def validate_unnamed(request: AdmissionRequest, *, everywhere: bool) -> AdmissionResponse:
    """The verdict on an anonymous client's Binding without a UID: the same for every pod."""
    return forbidden(request, UNNAMED) if everywhere else allowed(request, warnings=[UNNAMED])


def validate_binding(
    request: AdmissionRequest,
    *,
    pod: Pod | None,
    trust: Trust,
    everywhere: bool = True,
    scheduler_name: str = SCHEDULER_NAME,
) -> AdmissionResponse:
    """The verdict on a Binding of `pod`, None if unknown.

    `everywhere`: only gpuplane binds pods with devices, whichever scheduler they name (GPUPLANE_GUARD).
    """
    username = request.user_info.username
    if not is_binding(request) or trust.is_own(username):
        return allowed(request)
    ours = pod is not None and asks_for_devices(pod)
    if pod is not None and not everywhere:
        ours = ours and is_meant_for_us(pod, scheduler_name=scheduler_name)
    try:
        binding = decode_object(request.object, Named)
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
