"""The Binding of an allocation's pod: what it carries, and how it is sent until its outcome is known.

Called by the bind saga, and by the binds that come together for their contents. The API server may apply a Binding long after its sender
gave up: a proxy held it, its storage stood still, the sender was paused. Kept true:

- An unknown outcome is settled forward: the same Binding is sent again until an answer is definite.
- Each sending is preceded by a look whether the reservation is still this attempt's own (`ledger.current`), and carries the pod's
  resourceVersion as it was read before that look. So once a later attempt has taken the reservation up and written to the pod
  (`_shut_out`), every Binding of an earlier attempt fails, however late it comes. Only after that write is a reservation
  given up of which an earlier Binding may still be under way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.conf import settings

from access.transactions import connection_let_go
from allocations import ledger
from allocations.errors import Overtaken
from allocations.leases.port import Want, lease_name
from allocations.ledger import Live
from allocations.outside import Outside
from claims.dialects import VisibleDevices, binding_annotations
from kube import pods
from kube.client import Cluster
from kube.errors import ConflictInCluster, KubeError, NotFoundInCluster, OutcomeUnknown, TemporaryKubeError
from kube.keys import ALLOCATED, ATTEMPT, CHOSEN_BY, KUBELET
from kube.objects import Pod

log = structlog.get_logger(__name__)

REQUEST_SECONDS = 5.0
"""Time-out of one request to the API server within a bind."""
PAUSE_SECONDS = 0.2
"""Between two sendings of the same Binding."""
SHUT_OUT_TRIES = 3
"""Times that a pod which changes at that moment is read, and written to, again."""


class BindFailed(Exception):
    """The attempt ended and everything it took was given back, or is being given back. The text says why."""


class OutcomeOpen(Exception):
    """Nobody knows yet whether the pod was bound: the reservation stays, and whoever takes it up sends again."""


@dataclass(slots=True)
class BindAttempt:
    """One attempt at binding, which began at `began_at` by the database's clock and `began` by the monotonic one, in seconds.

    `resumed`: an earlier attempt had the reservation, and its Binding may be under way still. `bound`: the pod, as read, is bound by
    this reservation. `deadline`: no Binding is sent later, on the monotonic clock.
    """

    live: Live
    outside: Outside
    began_at: datetime
    began: float
    deadline: float
    actor: str
    resumed: bool = False
    bound: bool = False
    pod_version: str = field(init=False)

    def __post_init__(self) -> None:
        self.pod_version = self.live.pod_version

    @property
    def wants(self) -> list[Want]:
        """The leases of the attempt."""
        return wants_of(self.live)

    @property
    def now(self) -> datetime:
        """The database's clock, gone on by ours since the bind began: it need not be asked at every step."""
        return self.began_at + timedelta(seconds=time.monotonic() - self.began)

    @property
    def cluster(self) -> Cluster | None:
        """Where the pod is to be bound; None where there is nothing to bind."""
        return self.outside.cluster if self.live.holder.pod_uid else None


def wants_of(live: Live) -> list[Want]:
    """The leases that an allocation needs, one a device."""
    return [
        Want(lease_name(grant.type, live.node, grant.minor), live.node, grant.uuid, grant.whole)
        for grant in live.grants
    ]


def binding_of(live: Live, *, pod_version: str = "") -> pods.Binding:
    """The Binding of an allocation's pod, with what it carries into the pod. `pod_version`: it fails if the pod has another by then."""
    if live.request.by_kubelet:
        annotations = {CHOSEN_BY: KUBELET}
    else:
        annotations = binding_annotations(
            request=live.request,
            node=live.node,
            grants=live.grants,
            visible=VisibleDevices(settings.GPUPLANE_VISIBLE_DEVICES),
            memory_total=live.memory_total.get,
            bus_id=live.bus_id.get,
        )
    holder = live.holder
    return pods.Binding(
        namespace=holder.namespace,
        name=holder.pod_name,
        uid=holder.pod_uid,
        node=live.node,
        annotations={**annotations, ATTEMPT: _mark(live)},
        version=pod_version,
    )


def is_ours(pod: Pod, live: Live) -> bool:
    """Whether the pod, as read, was bound by a Binding of this allocation, whichever attempt sent it."""
    if pod.metadata.uid != live.holder.pod_uid or pod.spec.node_name != live.node:
        return False
    mark = pod.annotations.get(ATTEMPT)
    if mark is not None:
        return mark.partition("/")[0] == str(live.id)
    wanted = binding_of(live).annotations
    return all(pod.annotations.get(key) == wanted[key] for key in (ALLOCATED, CHOSEN_BY) if key in wanted)


def read_pod(attempt: BindAttempt, cluster: Cluster) -> None:
    """Look at the pod before anything is sent for a reservation that an earlier attempt had: it may be bound already.

    Raises OutcomeOpen, BindFailed.
    """
    _judge(attempt, _read(attempt, cluster))


def send_binding(attempt: BindAttempt, cluster: Cluster) -> None:
    """Send until it is known what became of it, within the deadline. Raises BindFailed, OutcomeOpen, Overtaken."""
    live = attempt.live
    unknown, conflicts = attempt.resumed, 0
    while time.monotonic() < attempt.deadline:
        require_current(live)
        try:
            binding = binding_of(live, pod_version=attempt.pod_version)
            pods.bind(cluster, binding, timeout=REQUEST_SECONDS, retry=False)
        except OutcomeUnknown as error:
            unknown = True
            log.info("bind.answer_lost", pod=live.holder.label, error=str(error))
        except TemporaryKubeError as error:
            log.info("bind.again", pod=live.holder.label, error=str(error))
        except KubeError as error:
            sent_with = attempt.pod_version
            if conflicts and cluster.pause(PAUSE_SECONDS):
                break
            _judge(attempt, _read(attempt, cluster))
            if attempt.bound:
                return
            if isinstance(error, ConflictInCluster) and attempt.pod_version != sent_with:
                conflicts += 1
                continue  # the pod has changed since it was read
            give_up(attempt, cluster, f"the API server refused the Binding: {error}", unknown=unknown)
            return
        else:
            return
        if cluster.pause(PAUSE_SECONDS):
            break
    if not unknown:
        raise OutcomeOpen("the API server did not take the Binding in time")
    _judge(attempt, _read(attempt, cluster))
    if not attempt.bound:
        raise OutcomeOpen("the answers to the Binding were lost, and the pod is not bound yet")


def give_up(attempt: BindAttempt, cluster: Cluster, why: str, *, unknown: bool) -> None:
    """End an attempt that cannot go on. Returns where the pod turns out to be bound by it (`attempt.bound`).

    `unknown`: a Binding of this reservation may be under way; it is shut out first. Raises BindFailed; OutcomeOpen, Overtaken where that
    cannot be done.
    """
    if unknown:
        _shut_out(attempt, cluster, why)
    if not attempt.bound:
        raise BindFailed(why)


def require_current(live: Live) -> None:
    """Raises Overtaken where the reservation is no longer this attempt's own. Asked right before each sending."""
    if live.id not in ledger.current({live.id: live.bind_attempt}):
        raise Overtaken
    connection_let_go()  # for the API server's answer


def _shut_out(attempt: BindAttempt, cluster: Cluster, why: str) -> None:
    """Write to the pod, so that Bindings sent with an earlier resourceVersion fail. Raises BindFailed, OutcomeOpen, Overtaken.

    The write is to the pod as it was read last, so that it cannot come late itself, when another allocation's Binding has marked the pod.
    """
    live = attempt.live
    if not live.pod_version:
        raise OutcomeOpen(f"{why}; a Binding sent before may be applied still")
    holder = live.holder
    for _ in range(SHUT_OUT_TRIES):
        require_current(live)
        try:
            pod: Pod | None = pods.annotate(
                cluster,
                namespace=holder.namespace,
                name=holder.pod_name,
                uid=holder.pod_uid,
                annotations={ATTEMPT: _mark(live)},
                version=attempt.pod_version,
                timeout=REQUEST_SECONDS,
            )
        except (ConflictInCluster, NotFoundInCluster):
            pod = _read(attempt, cluster)
        except KubeError as error:
            raise OutcomeOpen(f"{why}; the pod cannot be written: {error}") from error
        _judge(attempt, pod)
        if attempt.bound or (pod is not None and pod.annotations.get(ATTEMPT) == _mark(live)):
            return  # where the answer was lost, too
    raise OutcomeOpen(f"{why}; the pod changed at this moment")


def _judge(attempt: BindAttempt, pod: Pod | None) -> None:
    """What the pod says of the attempt: bound by it, still to be bound (with which resourceVersion), or never. Raises BindFailed."""
    if pod is None:
        raise BindFailed("the pod is gone")
    if pod.metadata.uid != attempt.live.holder.pod_uid:
        raise BindFailed("the pod was replaced by another of the same name")
    attempt.bound = _bound_by(attempt, pod)
    if attempt.bound:
        return
    if pod.spec.node_name:
        raise BindFailed("the pod was bound by somebody else")
    if pod.metadata.deletion_timestamp:
        raise BindFailed("the pod is being deleted")
    attempt.pod_version = pod.metadata.resource_version


def _bound_by(attempt: BindAttempt, pod: Pod) -> bool:
    return bool(pod.spec.node_name) and is_ours(pod, attempt.live)


def _mark(live: Live) -> str:
    return f"{live.id}/{live.bind_attempt}"


def _read(attempt: BindAttempt, cluster: Cluster) -> Pod | None:
    """The pod as it is now. Raises OutcomeOpen."""
    holder = attempt.live.holder
    try:
        return pods.find(cluster, namespace=holder.namespace, name=holder.pod_name, timeout=REQUEST_SECONDS)
    except KubeError as error:
        raise OutcomeOpen(f"the API server does not say what became of the Binding: {error}") from error
