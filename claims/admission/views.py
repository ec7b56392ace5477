"""The webhooks as functions from body to answer. Thin: decode, one pure verdict, encode.

Called by `gpuplane.doors`; `pods_mutate` and `pods_takeover` on the event loop itself, so it touches neither database nor
network. Kept true: whatever comes in, an AdmissionReview goes out; no call has a side effect, so dry
runs and repeats are answered alike. All verdicts but one depend on the review and the settings alone; the guard of
Bindings reads the pod, and for strangers only what they name by its UID.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import structlog
from django.conf import settings

from claims.admission.mutate import mutate_pod
from claims.admission.trust import Trust
from claims.admission.validate_binding import binding_uid, is_binding, validate_binding, validate_unnamed
from claims.admission.validate_claim import validate_claim
from claims.admission.validate_pod import validate_pod
from kube import pods
from kube.admission import (
    AdmissionRequest,
    AdmissionResponse,
    ReviewInvalid,
    Status,
    allowed,
    decode_review,
    encode_review,
    forbidden,
)
from kube.errors import Denied, KubeError
from kube.names import InvalidName, check_namespace, check_subdomain
from kube.objects import Pod
from kube.shared import shared_cluster

log = structlog.get_logger(__name__)


def pods_mutate(body: bytes) -> bytes:
    """POST /webhooks/pods/mutate."""
    return _mutated(body, takeover=False)


def pods_takeover(body: bytes) -> bytes:
    """POST /webhooks/pods/takeover: the same, for pods that another scheduler was to have (DEV-11)."""
    return _mutated(body, takeover=True)


def _mutated(body: bytes, *, takeover: bool) -> bytes:
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    return encode_review(
        mutate_pod(
            request,
            trust=_trust(),
            takeover=takeover,
            count_native=settings.GPUPLANE_COUNT_NATIVE,
            native_mode=settings.GPUPLANE_NATIVE_MODE,
            scheduler_name=settings.GPUPLANE_SCHEDULER_NAME,
        )
    )


def pods_validate(body: bytes) -> bytes:
    """POST /webhooks/pods/validate."""
    try:
        request = decode_review(body)
        return encode_review(validate_pod(request, trust=_trust(), scheduler_name=settings.GPUPLANE_SCHEDULER_NAME))
    except ReviewInvalid as problem:
        return _unreadable(body, problem)


def gpuclaims_validate(body: bytes) -> bytes:
    """POST /webhooks/gpuclaims/validate."""
    try:
        return encode_review(validate_claim(decode_review(body)))
    except ReviewInvalid as problem:
        return _unreadable(body, problem)


def bindings_validate(body: bytes) -> bytes:
    """POST /webhooks/bindings/validate, asked by one who has shown that it may: a client certificate, or a bearer token."""
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    return encode_review(_binding_judged(request))


def bindings_validate_for_strangers(body: bytes) -> bytes:
    """The same, asked by anybody: what the answer tells of a pod it tells to those alone who name the pod's UID."""
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    trust = _trust()
    unseen = validate_binding(
        request, pod=None, trust=trust
    )  # of what stands in the review: who asks, and what is planted
    if not unseen.allowed or not is_binding(request) or trust.is_own(request.user_info.username):
        return encode_review(unseen)
    uid = binding_uid(request)
    if not uid:
        return encode_review(validate_unnamed(request, everywhere=settings.GPUPLANE_GUARD == "everywhere"))
    return encode_review(_binding_judged(request, uid=uid))


def _binding_judged(request: AdmissionRequest, *, uid: str = "") -> AdmissionResponse:
    """The verdict; with `uid` a pod of another UID counts as none."""
    if request.user_info.username in _trust().own:
        return validate_binding(request, pod=None, trust=_trust())
    try:
        pod = _pod_of(request)
    except Denied as error:
        # Our own rights are broken for good: refusing would stop every scheduler of the cluster, so say it and pass.
        log.exception("webhook.binding_without_rights", error=str(error))
        return allowed(request, warnings=["gpuplane may not read pods, so this Binding was not checked"])
    except KubeError as error:
        log.warning("webhook.binding_without_pod", error=str(error))
        if settings.GPUPLANE_GUARD != "everywhere":  # most pods are others' by now: nobody is to wait for us
            return allowed(request, warnings=["gpuplane could not read the pod, so this Binding was not checked"])
        return forbidden(request, "gpuplane cannot see whether the pod asks for devices; try again")
    return validate_binding(
        request,
        pod=None if pod is None or uid not in ("", pod.metadata.uid) else pod,
        trust=_trust(),
        everywhere=settings.GPUPLANE_GUARD == "everywhere",
        scheduler_name=settings.GPUPLANE_SCHEDULER_NAME,
    )


def _pod_of(request: AdmissionRequest) -> Pod | None:
    cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
    if cluster is None:
        return None
    try:
        check_namespace(request.namespace)
        check_subdomain(request.name)
    except InvalidName:
        return None
    return pods.find(cluster, namespace=request.namespace, name=request.name)


def _trust() -> Trust:
    return _trust_of(tuple(settings.GPUPLANE_SERVICE_ACCOUNT), settings.GPUPLANE_TRUSTED_USERS)


@lru_cache(maxsize=8)
def _trust_of(own: tuple[str, ...], others: tuple[str, ...]) -> Trust:
    trusted = frozenset(others)
    return Trust(own=frozenset(own), schedulers={"koordinator": trusted, "kai": trusted, "hami": trusted})


class _Uid(msgspec.Struct):
    uid: str = ""


class _Loose(msgspec.Struct):
    request: _Uid = msgspec.field(default_factory=_Uid)


def _unreadable(body: bytes, problem: ReviewInvalid) -> bytes:
    """allowed: false under the uid that came, as far as one can be read."""
    try:
        uid = msgspec.json.decode(body, type=_Loose).request.uid[:256]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        uid = ""
    return encode_review(AdmissionResponse(uid=uid, allowed=False, status=Status(400, str(problem), "BadRequest")))
