"""Makes and deletes trigger pods in the cluster, and labels the nodes that they are to keep off.

Invariants: every GPU node that is registered has the label in-use before a trigger pod is made or deleted, but for
nodes whose label the API server refuses: a trigger pod that is bound to such a node is deleted, and made again; a pod
that is there already under the name is taken for the one that was made; a pod is deleted by its UID.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog
from django.conf import settings

from autoscaling.choices import COMING, TriggerState
from autoscaling.counters import CLEANUP_FAILURES, CREATED
from autoscaling.models import Trigger
from autoscaling.rounds.trigger_transitions import fail, move
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError, NotFoundInCluster, PermanentKubeError
from kube.keys import IN_USE_LABEL
from kube.objects import Pod
from kube.resources import PODS
from nodes.choices import NodeState
from nodes.models import Node

IN_USE: Final = {IN_USE_LABEL: "true"}
MADE_A_TURN: Final = 100

log = structlog.get_logger(__name__)


def label_nodes_in_use(cluster: Cluster) -> None:
    """Label every GPU node of the cluster that has no label in-use yet. Raises `TemporaryKubeError`."""
    there = Node.objects.exclude(state=NodeState.GONE).exclude(cluster_uid="")
    for name, labels in there.values_list("name", "labels"):
        if labels.get(IN_USE_LABEL) != "true":
            try:
                kube_nodes.label(cluster, name=name, labels=IN_USE)
            except NotFoundInCluster:
                continue
            except PermanentKubeError as error:
                log.warning("growth.node_not_labelled", node=name, error=str(error))


def make_wanted(cluster: Cluster, *, pods: dict[str, Pod], now: datetime) -> None:
    """Make the pods of triggers that are wanted. Raises `TemporaryKubeError`; a trigger that is refused has failed."""
    wanted = list(Trigger.objects.filter(state=TriggerState.WANTED).select_related("request").order_by("pk"))
    if not wanted:
        return
    label_nodes_in_use(cluster)
    for trigger in wanted[:MADE_A_TURN]:
        there = pods.get(trigger.name)
        if there is not None and (there.finished or there.metadata.deletion_timestamp or there.spec.node_name):
            delete(cluster, there)  # of an earlier try
            continue
        try:
            pod = _create(cluster, trigger)
        except PermanentKubeError as error:
            log.warning("growth.trigger_refused", trigger=trigger.name, error=str(error))
            fail(trigger, f"the trigger pod was refused: {error}", now=now)
            continue
        first = trigger.created_at or now
        if move(trigger, TriggerState.CREATED, now=now, uid=pod.metadata.uid, created_at=first):
            CREATED.inc()
        elif not Trigger.objects.filter(pk=trigger.pk, state__in=COMING, uid=pod.metadata.uid).exists():
            delete(cluster, pod)  # withdrawn in this moment; another worker may have noted it as well


def _create(cluster: Cluster, trigger: Trigger) -> Pod:
    """The pod, which may have been there. Raises `kube.errors`."""
    path = PODS.path(namespace=settings.GPUPLANE_NAMESPACE)
    try:
        return cluster.create(path, trigger.manifest, Pod, idempotent=True)
    except AlreadyExists:
        return cluster.get(PODS.path(namespace=settings.GPUPLANE_NAMESPACE, name=trigger.name), Pod)


def delete(cluster: Cluster, pod: Pod) -> None:
    """Delete the pod at once; where that fails the next round tries again."""
    meta = pod.metadata
    path = PODS.path(namespace=meta.namespace, name=meta.name)
    try:
        cluster.delete(path, uid=meta.uid, grace_seconds=0)
    except NotFoundInCluster:
        log.debug("growth.trigger_gone", trigger=meta.name)
    except KubeError as error:
        CLEANUP_FAILURES.inc()
        log.warning("growth.trigger_left", trigger=meta.name, error=str(error))


def delete_ended(cluster: Cluster, *, pods: dict[str, Pod], now: datetime) -> None:
    """Delete pods of triggers that ended, and pods that no trigger stands for; note which are gone."""
    known = {one.name: one for one in Trigger.objects.filter(name__in=list(pods))}
    ended = (TriggerState.SERVED, TriggerState.FAILED, TriggerState.WITHDRAWN, TriggerState.READY)
    labelled = False
    for name, pod in pods.items():
        trigger = known.get(name)
        if trigger is not None and trigger.state not in ended:
            continue
        if not labelled:
            label_nodes_in_use(cluster)
            labelled = True
        if trigger is None:
            log.warning("growth.trigger_unknown", trigger=name)
        delete(cluster, pod)
    left = Trigger.objects.filter(state__in=ended, pod_gone_at__isnull=True).exclude(name__in=list(pods))
    left.update(pod_gone_at=now)
