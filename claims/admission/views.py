"""The webhooks as functions from body to answer. Thin: decode, one pure verdict, encode.

Called by `gpuplane.doors`; `pods_mutate` and `pods_takeover` on the event loop itself where the body is small, so they touch neither
database nor network. Kept true: whatever comes in, an AdmissionReview goes out; no call has a side effect, so dry runs and repeats are
answered alike. All verdicts but one depend on the review and the settings alone; the guard of Bindings reads the pod, which may have to
wait for the API server, and for strangers only what they name by its UID.
"""

from __future__ import annotations

import time
from asyncio import QueueFull
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol

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
from kube.errors import Denied, KubeError, TemporaryKubeError
from kube.names import InvalidName, check_namespace, check_subdomain
from kube.objects import Pod
from kube.shared import shared_cluster

LOOKUP_SECONDS: Final = 2.0
"""For the API server's answer about the pod of a Binding. The API server waits 5 s for ours, and then lets the Binding
pass."""
QUICK_SECONDS: Final = 0.5
"""What fails sooner, such as a connection that was closed meanwhile, is tried a second time."""

log = structlog.get_logger(__name__)


class InThread(Protocol):
    """Runs a function in a thread.

    Awaits what it returns or raises. Raises QueueFull where too many wait for one already.
    """

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Run `function(*args)`."""


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


async def bindings_validate_apart(body: bytes, in_thread: InThread, looking_up: InThread) -> bytes:
    """POST /webhooks/bindings/validate on the event loop, asked by one who has shown that it may: a client certificate, or a bearer token."""
    return await _apart(partial(_without_lookup, body), in_thread, looking_up)


async def bindings_validate_for_strangers_apart(body: bytes, in_thread: InThread, looking_up: InThread) -> bytes:
    """The same, asked by anybody: what the answer tells of a pod it tells to those alone who name the pod's UID."""
    return await _apart(partial(_without_lookup_for_strangers, body), in_thread, looking_up)


async def _apart(judge: Callable[[], bytes | Lookup], in_thread: InThread, looking_up: InThread) -> bytes:
    """What needs no look-up never waits for one."""
    found = await in_thread(judge)
    if isinstance(found, bytes):
        return found
    try:
        answer: bytes = await looking_up(_looked_up, found)
    except QueueFull:
        return _unseen(found.request, "too many Bindings are being checked")
    return answer


def bindings_validate(body: bytes) -> bytes:
    """`bindings_validate_apart`, at once."""
    found = _without_lookup(body)
    return found if isinstance(found, bytes) else _looked_up(found)


def bindings_validate_for_strangers(body: bytes) -> bytes:
    """`bindings_validate_for_strangers_apart`, at once."""
    found = _without_lookup_for_strangers(body)
    return found if isinstance(found, bytes) else _looked_up(found)


class Lookup(NamedTuple):
    """A Binding whose pod has to be read. With `uid` a pod of another UID counts as none."""

    request: AdmissionRequest
    uid: str = ""


def _without_lookup(body: bytes) -> bytes | Lookup:
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    if request.user_info.username in _trust().own:
        return encode_review(validate_binding(request, pod=None, trust=_trust()))
    return Lookup(request)


def _without_lookup_for_strangers(body: bytes) -> bytes | Lookup:
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    trust = _trust()
    # of what stands in the review: who asks, and what is planted
    unseen = validate_binding(request, pod=None, trust=trust)
    if not unseen.allowed or not is_binding(request) or trust.is_own(request.user_info.username):
        return encode_review(unseen)
    uid = binding_uid(request)
    if not uid:
        return encode_review(validate_unnamed(request, everywhere=settings.GPUPLANE_GUARD == "everywhere"))
    return Lookup(request, uid)


def _looked_up(asked: Lookup) -> bytes:
    request, uid = asked
    try:
        pod = _pod_of(request)
    except Denied as error:
        # Our own rights are broken for good: refusing would stop every scheduler of the cluster, so say it and pass.
        log.exception("webhook.binding_without_rights", error=str(error))
        return encode_review(allowed(request, warnings=["gpuplane may not read pods, so this Binding was not checked"]))
    except KubeError as error:
        return _unseen(request, str(error))
    verdict = validate_binding(
        request,
        pod=None if pod is None or uid not in ("", pod.metadata.uid) else pod,
        trust=_trust(),
        everywhere=settings.GPUPLANE_GUARD == "everywhere",
        scheduler_name=settings.GPUPLANE_SCHEDULER_NAME,
    )
    return encode_review(verdict)


def _unseen(request: AdmissionRequest, why: str) -> bytes:
    """The pod could not be read in time."""
    log.warning("webhook.binding_without_pod", error=why)
    if settings.GPUPLANE_GUARD != "everywhere":  # most pods are others' by now: nobody is to wait for us
        warning = "gpuplane could not read the pod, so this Binding was not checked"
        return encode_review(allowed(request, warnings=[warning]))
    return encode_review(forbidden(request, "gpuplane cannot see whether the pod asks for devices; try again"))


def _pod_of(request: AdmissionRequest) -> Pod | None:
    cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
    if cluster is None:
        return None
    try:
        check_namespace(request.namespace)
        check_subdomain(request.name)
    except InvalidName:
        return None
    began = time.monotonic()
    place = {"namespace": request.namespace, "name": request.name}
    try:
        return pods.find(cluster, **place, timeout=LOOKUP_SECONDS, retry=False)
    except TemporaryKubeError:
        if time.monotonic() - began > QUICK_SECONDS:
            raise
    return pods.find(cluster, **place, timeout=LOOKUP_SECONDS, retry=False)


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
        uid = msgspec.json.decode(body, type=_Loose).request.uid[:256]  # makes no objects of the rest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        uid = ""
    return encode_review(AdmissionResponse(uid=uid, allowed=False, status=Status(400, str(problem), "BadRequest")))
