"""The webhooks: decode the review, call a pure verdict, encode the answer.

Called by `gpuplane.listeners`. Invariants: every body is answered with an AdmissionReview; no call has a side effect;
`pods_mutate` and `pods_takeover`, which may run on the event loop, touch neither database nor network: they know the
queues as this process read them last. Validation reads queues, the guard of Bindings the pod from the API server.
"""

from __future__ import annotations

import time
from asyncio import QueueFull
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial, wraps
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog
from django.conf import settings

from claims.admission.isolation import IsolationRules
from claims.admission.mutate import mutate_pod
from claims.admission.trust import Trust
from claims.admission.validate_binding import binding_uid, is_binding, validate_binding, validate_unnamed
from claims.admission.validate_manifest import validate_manifest
from claims.admission.validate_pod import validate_pod
from claims.dialects.registry import GUARDED
from claims.kinds import CLAIM, GANG, QUEUE
from claims.queues import DIRECTORY, FRESH_SECONDS
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
"""Time-out of reading a Binding's pod. The API server waits 5 s for our answer, and then lets the Binding pass."""
QUICK_SECONDS: Final = 0.5
"""A read that fails sooner, e.g. over a connection that was closed meanwhile, is repeated."""

log = structlog.get_logger(__name__)


class InThread(Protocol):
    """Runs a function in a thread. Raises QueueFull where too many calls wait for one."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Run `function(*args)`."""


class Lookup(NamedTuple):
    """A Binding whose pod has to be read. With a `uid`, a pod of another UID counts as none."""

    request: AdmissionRequest
    uid: str = ""


def _webhook(verdict: Callable[[AdmissionRequest], AdmissionResponse]) -> Callable[[bytes], bytes]:
    """A view that decodes the review, judges it and encodes the answer."""

    @wraps(verdict)
    def view(body: bytes) -> bytes:
        try:
            request = decode_review(body)
        except ReviewInvalid as problem:
            return _unreadable(body, problem)
        return encode_review(verdict(request))

    return view


@_webhook
def pods_mutate(request: AdmissionRequest) -> AdmissionResponse:
    """POST /webhooks/pods/mutate."""
    return _mutated(request, takeover=False)


@_webhook
def pods_takeover(request: AdmissionRequest) -> AdmissionResponse:
    """POST /webhooks/pods/takeover: the same for namespaces whose pods are taken over (DEV-11)."""
    return _mutated(request, takeover=True)


def _mutated(request: AdmissionRequest, *, takeover: bool) -> AdmissionResponse:
    return mutate_pod(
        request,
        trust=_trust(),
        takeover=takeover,
        count_native=settings.GPUPLANE_COUNT_NATIVE,
        native_mode=settings.GPUPLANE_NATIVE_MODE,
        scheduler_name=settings.GPUPLANE_SCHEDULER_NAME,
        queues=DIRECTORY.cached(),
        gates=bool(settings.GPUPLANE_KUBECONFIG),  # else nobody would take them off
        isolation=_isolation(),
    )


@_webhook
def pods_validate(request: AdmissionRequest) -> AdmissionResponse:
    """POST /webhooks/pods/validate."""
    queues = partial(DIRECTORY.get, FRESH_SECONDS)
    return validate_pod(
        request,
        trust=_trust(),
        scheduler_name=settings.GPUPLANE_SCHEDULER_NAME,
        queues=queues,
        isolation=_isolation(),
    )


gpuclaims_validate = _webhook(partial(validate_manifest, CLAIM))
"""POST /webhooks/gpuclaims/validate."""
gpugangs_validate = _webhook(partial(validate_manifest, GANG))
"""POST /webhooks/gpugangs/validate."""
gpuqueues_validate = _webhook(partial(validate_manifest, QUEUE))
"""POST /webhooks/gpuqueues/validate, which reads the stored queues."""


async def bindings_validate(body: bytes, in_thread: InThread, looking_up: InThread) -> bytes:
    """POST /webhooks/bindings/validate from a client with a certificate or a bearer token."""
    return await _validated(body, in_thread, looking_up, anonymous=False)


async def bindings_validate_anonymous(body: bytes, in_thread: InThread, looking_up: InThread) -> bytes:
    """The same from anybody: the answer depends on a pod only where the review names its UID."""
    return await _validated(body, in_thread, looking_up, anonymous=True)


async def _validated(body: bytes, in_thread: InThread, looking_up: InThread, *, anonymous: bool) -> bytes:
    """Answer without a lookup where none is needed, so that it waits for no other."""
    judged: bytes | Lookup = await in_thread(_without_lookup, body, anonymous)
    if isinstance(judged, bytes):
        return judged
    try:
        answer: bytes = await looking_up(_with_lookup, judged)
    except QueueFull:
        return _unseen(judged.request, "too many Bindings are being checked")
    return answer


def _without_lookup(body: bytes, anonymous: bool) -> bytes | Lookup:
    try:
        request = decode_review(body)
    except ReviewInvalid as problem:
        return _unreadable(body, problem)
    trust = _trust()
    own = trust.is_own(request.user_info.username)
    if not anonymous and not own:
        return Lookup(request)
    verdict = validate_binding(request, pod=None, trust=trust)
    if own or not verdict.allowed or not is_binding(request):
        return encode_review(verdict)
    uid = binding_uid(request)
    if not uid:
        return encode_review(validate_unnamed(request, everywhere=settings.GPUPLANE_GUARD == "everywhere"))
    return Lookup(request, uid)


def _with_lookup(lookup: Lookup) -> bytes:
    request, uid = lookup
    try:
        pod = _pod_of(request)
    except Denied as error:
        # Our own permissions are missing: refusing would stop every scheduler of the cluster.
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
    """The answer where the pod could not be read in time."""
    log.warning("webhook.binding_without_pod", error=why)
    if settings.GPUPLANE_GUARD != "everywhere":  # most pods are not ours: do not block them
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


def _isolation() -> IsolationRules:
    return IsolationRules(
        default=settings.GPUPLANE_ISOLATION,
        mps_pipe=settings.GPUPLANE_MPS_PIPE_DIRECTORY,
        mps_shm=settings.GPUPLANE_MPS_SHM_DIRECTORY,
        hami_core=settings.GPUPLANE_HAMI_CORE_DIRECTORY,
    )


def _trust() -> Trust:
    return _trust_of(tuple(settings.GPUPLANE_SERVICE_ACCOUNT), settings.GPUPLANE_TRUSTED_USERS)


@lru_cache(maxsize=8)
def _trust_of(own: tuple[str, ...], others: tuple[str, ...]) -> Trust:
    trusted = frozenset(others)
    return Trust(own=frozenset(own), schedulers=dict.fromkeys(GUARDED, trusted))


class _Uid(msgspec.Struct):
    uid: str = ""


class _Loose(msgspec.Struct):
    request: _Uid = msgspec.field(default_factory=_Uid)


def _unreadable(body: bytes, problem: ReviewInvalid) -> bytes:
    """Refuse, under the uid of the request if that can be read."""
    try:
        uid = msgspec.json.decode(body, type=_Loose).request.uid[:256]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        uid = ""
    return encode_review(AdmissionResponse(uid=uid, allowed=False, status=Status(400, str(problem), "BadRequest")))
