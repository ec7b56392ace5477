"""bind: the hold becomes leases and a Binding (`allocations.scheduling.binder`), or the pod is refused with a reason.

Invariants: the same bind twice is one bind; without a live hold, or where one of its devices is sick or gone, the
engine plans again, on the node named only; a pod that asks for no devices gets a plain Binding, since kube-scheduler
sends every pod once a bind verb is configured.
"""

from __future__ import annotations

from django.conf import settings

from allocations import ledger
from allocations.attempts import Attempt
from allocations.backends import Backends, current_backends
from allocations.choices import State
from allocations.engine.plan import verdicts_of
from allocations.engine.snapshot import Snapshot
from allocations.errors import MovedOn, Overtaken
from allocations.extender.advised import recorded_request
from allocations.extender.reasons import BEING_BOUND, BEING_UNDONE, NOT_REGISTERED, RACING
from allocations.extender.wire import BindArgs
from allocations.identity import identity_problem
from allocations.leases.port import LeaseTaken
from allocations.ledger.binding import SCHEDULER
from allocations.ledger.external_holders import external_holder_set
from allocations.ledger.reads import request_of
from allocations.models import Allocation
from allocations.pod_request import Malformed, PodRequest, parse_pod_request
from allocations.scheduling import binder, preemption
from allocations.scheduling.attempt import BindFailed, OutcomeOpen
from allocations.scheduling.limits import PAUSE_SECONDS
from allocations.scheduling.placement import LostEveryRace, NotAdmitted, PlacementRequest, Unplaced, place
from claims.dialects.request import Refusal
from kube import pods
from kube.client import Cluster
from kube.errors import KubeError
from kube.names import InvalidName, check_subdomain
from kube.objects import Pod
from storage.clock import database_now

ATTEMPTS = 6
NO_HOLD = "the pod has no live hold and what it asks for is not known: filter it again"


class _Ended(Exception):
    """Bind answers with this text, empty when the pod is bound."""


def bind_pod(args: BindArgs) -> str:
    """The Error of ExtenderBindingResult, empty when the pod is bound."""
    problem = bind_problem(args)
    if problem:
        return problem
    try:
        return _bind(args, current_backends())
    except _Ended as ended:
        return str(ended)


def bind_problem(args: BindArgs) -> str:
    """What is wrong with the names, empty when they are sound."""
    if not (args.PodName and args.PodNamespace and args.PodUID and args.Node):
        return "PodName, PodNamespace, PodUID and Node must all be given"
    try:
        check_subdomain(args.Node, what="Node")
    except InvalidName as error:
        return str(error)
    return identity_problem(namespace=args.PodNamespace, name=args.PodName, uid=args.PodUID)


def _bind(args: BindArgs, backends: Backends) -> str:
    overtaken = False
    for _ in range(ATTEMPTS):
        live, clock = ledger.read_pod_live(args.PodUID, read_clock=database_now)
        now = clock.now
        if live is not None and live.state is State.BOUND:
            return "" if live.node == args.Node else f"the pod already has devices on {live.node}"
        if live is not None and live.state is State.RELEASING:
            return BEING_UNDONE.text
        if live is not None and live.state is State.RESERVED and live.node != args.Node:
            return f"the pod is being bound to {live.node}"
        if live is not None and live.state is State.RESERVED and overtaken:
            if backends.cluster is None or backends.cluster.pause(PAUSE_SECONDS):
                break
            continue
        try:
            if live is None or live.node != args.Node or (live.state is State.HELD and not live.usable):
                _hold_on_node(args, backends)
                continue
            binder.bind(live, backends, now=now)
        except LeaseTaken as taken:
            external_holder_set(taken.want.device_uuid, taken.holder, now=clock.now, actor=SCHEDULER)
        except Overtaken:
            overtaken = True  # two attempts that overtake each other in turn would never end
        except MovedOn:
            continue
        except (BindFailed, OutcomeOpen) as failed:
            return str(failed)
        else:
            if live.awaited:
                preemption.pod_bound(args.PodUID, now)
            return ""
    return (BEING_BOUND if overtaken else RACING).text


def _hold_on_node(args: BindArgs, backends: Backends) -> None:
    """Place the pod again, on the node named only. Raises _Ended when it does not fit."""
    pod_request = _pod_request(args, backends)

    def row(snapshot: Snapshot, _: ledger.Live | None) -> list[int]:
        if args.Node not in snapshot.node_index:
            raise _Ended(NOT_REGISTERED.text)
        return [snapshot.node_index[args.Node]]

    holder = ledger.pod_holder(args.PodNamespace, args.PodName, args.PodUID)
    match place(PlacementRequest(holder, pod_request), row):
        case NotAdmitted():
            raise _Ended("the queues have not admitted the pod")
        case Unplaced(decision=decision, look=look):
            reasons = verdicts_of(decision, look.snapshot).refused()
            raise _Ended(next((reason.text for _, reason in reasons), decision.summary))
        case LostEveryRace():
            raise _Ended(RACING.text)


def _pod_request(args: BindArgs, backends: Backends) -> PodRequest:
    """What the pod asks for: read from it where there is a cluster, else what filter recorded or the ledger has.

    Raises _Ended when it is not to be placed, a pod that asks for no devices being bound.
    """
    if backends.cluster is not None:
        pod = _read_pod(args, backends.cluster)
        match parse_pod_request(pod):
            case None:
                raise _Ended(_bind_plain(args, backends.cluster))
            case Refusal(reason=why) | Malformed(problem=why):
                raise _Ended(why)
            case PodRequest() as pod_request:
                return pod_request
    recorded = recorded_request(args.PodUID)
    if recorded is not None:
        return recorded
    last = Allocation.objects.filter(pod_uid=args.PodUID).order_by("-created_at").first()
    if last is None:
        raise _Ended(NO_HOLD)
    return PodRequest(
        request_of(last.request),
        last.claim_id,
        settings.GPUPLANE_HOLD_SECONDS,
        last.confined,
        Attempt(last.attempt_version, last.failure_seen),
        last.priority,
        last.priority,
    )


def _read_pod(args: BindArgs, cluster: Cluster) -> Pod:
    try:
        pod = pods.find(cluster, namespace=args.PodNamespace, name=args.PodName)
    except KubeError as error:
        raise _Ended(f"the pod cannot be read: {error}") from error
    if pod is None or pod.metadata.uid != args.PodUID:
        raise _Ended("the pod is gone")
    return pod


def _bind_plain(args: BindArgs, cluster: Cluster) -> str:
    """Bind a pod that asks for no devices."""
    binding = pods.Binding(namespace=args.PodNamespace, name=args.PodName, uid=args.PodUID, node=args.Node)
    try:
        cluster.run(pods.bind(cluster, binding))
    except KubeError as error:
        return "" if _read_pod(args, cluster).spec.node_name == args.Node else str(error)
    return ""
