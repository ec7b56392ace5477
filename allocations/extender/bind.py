"""bind: the hold becomes leases and a Binding (`allocations.saga`), or the pod is refused with a reason.

Kept true: the same bind twice is one bind; without a live hold, or where one of its devices has fallen sick or left
since, the engine plans again, on the node named only; a pod that asks for no devices gets a plain Binding, since kube-scheduler hands us every
pod once a bind verb is configured.
"""

from __future__ import annotations

from django.conf import settings

from allocations import fleet, ledger, making_way
from allocations.asking import Asks, pod_asks
from allocations.attempts import Attempt
from allocations.bindings import PAUSE_SECONDS, BindFailed, OutcomeOpen
from allocations.choices import State
from allocations.engine.decision import Decision
from allocations.engine.plan import plan
from allocations.errors import LostRace, MovedOn, Overtaken, PodHasOne
from allocations.extender.advised import noted_asks
from allocations.extender.identity import identity_problem
from allocations.extender.reasons import BEING_BOUND, BEING_UNDONE, NOT_REGISTERED, RACING
from allocations.extender.wire import BindArgs
from allocations.leases.port import LeaseTaken
from allocations.ledger.own import request_of
from allocations.ledger.strangers import stranger_set
from allocations.models import Allocation
from allocations.outside import Outside, outside
from allocations.saga import carry_out
from audit.clock import database_now
from claims.dialects.request import Refusal
from kube import pods
from kube.client import Cluster
from kube.errors import KubeError
from kube.names import InvalidName, check_subdomain
from kube.objects import Pod

ATTEMPTS = 6
NO_HOLD = "the pod has no live hold and what it asks for is not known: filter it again"


class _Refused(Exception):
    """Bind answers with this text."""


class _Plain(Exception):
    """The pod asks for no devices."""


def bind_pod(args: BindArgs) -> str:
    """The Error of ExtenderBindingResult, empty when the pod is bound."""
    problem = bind_problem(args)
    if problem:
        return problem
    world = outside()
    try:
        return _bind(args, world)
    except _Refused as refused:
        return str(refused)
    except _Plain:
        return _plain_binding(args, world)


def bind_problem(args: BindArgs) -> str:
    """What is wrong with the names, empty when they are sound."""
    if not (args.PodName and args.PodNamespace and args.PodUID and args.Node):
        return "PodName, PodNamespace, PodUID and Node must all be given"
    try:
        check_subdomain(args.Node, what="Node")
    except InvalidName as error:
        return str(error)
    return identity_problem(namespace=args.PodNamespace, name=args.PodName, uid=args.PodUID)


def _bind(args: BindArgs, world: Outside) -> str:
    blocked: set[int] = set()
    overtaken = False
    for _ in range(ATTEMPTS):
        now = database_now()
        live = ledger.read_own(args.PodUID, now).live
        if live is not None and live.state is State.BOUND:
            return "" if live.node == args.Node else f"the pod already has devices on {live.node}"
        if live is not None and live.state is State.RELEASING:
            return BEING_UNDONE
        if live is not None and live.state is State.RESERVED and live.node != args.Node:
            return f"the pod is being bound to {live.node}"
        if live is not None and live.state is State.RESERVED and overtaken:
            if world.cluster is None or world.cluster.pause(PAUSE_SECONDS):
                break
            continue
        try:
            if live is None or live.node != args.Node or (live.state is State.HELD and not live.usable):
                _hold_on_node(args, live, world, blocked)
                continue
            carry_out(live, world, now=now)
            if live.awaited:
                making_way.served(args.PodUID, now)
        except LeaseTaken as taken:
            stranger_set(
                device_uuid=taken.want.device_uuid,
                stranger=taken.holder,
                now=database_now(),
                actor="scheduler",
            )
        except LostRace as lost:
            blocked.update(lost.device_ids)
        except Overtaken:
            overtaken = True  # two that take it up from each other in turn would never be through
        except (MovedOn, PodHasOne):
            continue
        except (BindFailed, OutcomeOpen) as failed:
            return str(failed)
        else:
            return ""
    return BEING_BOUND if overtaken else RACING


def _hold_on_node(args: BindArgs, held: ledger.Live | None, world: Outside, blocked: set[int]) -> None:
    """Plan again on the node named and hold the outcome. Raises _Refused when it does not fit."""
    asks = _what_it_asks(args, world)
    look = fleet.look()
    picture, now = look.picture, look.now
    row = picture.node_index.get(args.Node)
    if row is None:
        raise _Refused(NOT_REGISTERED)
    decision = plan(
        picture,
        asks.request,
        candidates=[row],
        own=None if held is None else held.amounts,
        blocked=blocked | look.kept_from(args.PodUID, asks.rank),
    )
    if decision.node is None:
        raise _Refused(_reason(decision))
    ledger.hold(
        holder=ledger.pod_holder(args.PodNamespace, args.PodName, args.PodUID),
        request=asks.request,
        decision=decision,
        claim_id=asks.claim_id,
        previous=held,
        now=now,
        hold_seconds=asks.hold_seconds,
        priority=asks.priority,
        rank=asks.rank,
        confined=asks.confined or decision.by_kubelet,
        attempt=asks.attempt,
    )


def _reason(decision: Decision) -> str:
    return next((reason.text for _, reason in decision.refused()), decision.summary)


def _what_it_asks(args: BindArgs, world: Outside) -> Asks:
    """From the pod itself where there is a cluster, else from what filter saw of it."""
    if world.cluster is not None:
        asks = pod_asks(_read_pod(args, world.cluster))
        if asks is None:
            raise _Plain
        if isinstance(asks, Refusal):
            raise _Refused(asks.reason)
        return asks
    known = noted_asks(args.PodUID)
    if known is not None:
        return known
    last = Allocation.objects.filter(pod_uid=args.PodUID).order_by("-created_at").first()
    if last is None:
        raise _Refused(NO_HOLD)
    return Asks(
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
        raise _Refused(f"the pod cannot be read: {error}") from error
    if pod is None or pod.metadata.uid != args.PodUID:
        raise _Refused("the pod is gone")
    return pod


def _plain_binding(args: BindArgs, world: Outside) -> str:
    if world.cluster is None:
        return ""
    binding = pods.Binding(namespace=args.PodNamespace, name=args.PodName, uid=args.PodUID, node=args.Node)
    try:
        pods.bind(world.cluster, binding)
    except KubeError as error:
        pod = _read_pod(args, world.cluster)
        return "" if pod.spec.node_name == args.Node else str(error)
    return ""
