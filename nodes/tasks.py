"""Celery tasks of nodes, all idempotent, also when two workers run one at the same time; the schedule is in
`gpuplane.beat`.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final, cast

import structlog
from celery import shared_task
from django.conf import settings

from kube import nodes as kube_nodes
from kube.errors import KubeError
from kube.shared import shared_cluster
from kube.watch_loop import Followed
from nodes import services, watching
from nodes.advertise import TASK as ADVERTISE
from nodes.advertise import advertise
from nodes.history import ring, rollups
from nodes.karpenter_nodes import grown_nodes_remove
from nodes.live import agent_liveness
from storage.clock import StepClock, database_now
from storage.enqueue import enqueue_next
from storage.leader_lock import leader_lock
from storage.redis_client import REDIS_ERRORS, Purpose, RedisError, client

CLOCK: Final = StepClock()

log = structlog.get_logger(__name__)


@shared_task(name="nodes.notice_silent_agents", ignore_result=True)
def notice_silent_agents() -> None:
    """Set the state of nodes whose agents are silent, or heard again (every 5 s)."""
    try:
        with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection:
            marks = cast("dict[bytes, bytes]", connection.hgetall(agent_liveness.LISTENERS_KEY))
            since, dead = agent_liveness.listening_since_of(marks, epoch=time.time())
            if dead:
                connection.hdel(agent_liveness.LISTENERS_KEY, *dead)
    except REDIS_ERRORS as error:
        log.warning("nodes.silence_unknown", why=str(error))
        return
    reading = CLOCK.read()
    counted = None if since is None else reading.later(since)  # nobody listens: nobody is silent
    noticed = agent_liveness.notice_silent(now=reading.now, listening_since=counted)
    if noticed != agent_liveness.Noticed():
        log.info("nodes.agents_noticed", suspect=noticed.suspect, not_ready=noticed.not_ready, ready=noticed.ready)


@shared_task(name="nodes.tasks.settle", ignore_result=True)
def settle() -> None:
    """Apply steady health, release disputed devices, remove nodes that Karpenter took away (every 5 s)."""
    now = database_now()
    steady, taken = services.health_settle(now=now), services.disputes_settle(now=now)
    removed = grown_nodes_remove(now=now)
    if steady or taken or removed:
        log.info("nodes.settled", devices_steady=steady, nodes_with_claims=taken, nodes_removed=removed)


@shared_task(name="nodes.tasks.roll_up", ignore_result=True)
def roll_up() -> None:
    """Write the history's minutes and hours (every 20 s); one worker at a time."""
    with leader_lock(settings.GPUPLANE_REDIS_URL, "history") as ours:
        if ours is None:
            return
        now = database_now()
        try:
            with ring.client() as connection:
                rollups.roll_up(connection, now=now)
        except REDIS_ERRORS as error:
            log.warning("history.ring_unread", why=str(error))
        rollups.roll_up_hours(now=now)


@shared_task(name="nodes.tasks.prune_history", ignore_result=True)
def prune_history() -> None:
    """Delete expired minutes and hours of the history (every hour)."""
    deleted = rollups.prune(
        now=database_now(),
        minutes_kept=timedelta(hours=settings.GPUPLANE_MINUTES_KEPT_HOURS),
        hours_kept=timedelta(days=settings.GPUPLANE_HOURS_KEPT_DAYS),
    )
    log.info("history.pruned", rows=deleted)


@shared_task(name="nodes.tasks.watch_nodes", ignore_result=True)
def watch_nodes() -> None:
    """One run of the node watch; the next follows at once, after an error on schedule."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return
        followed = watching.watch_nodes(cluster=cluster)
    except (KubeError, RedisError) as error:
        log.warning("watch.failed", of="nodes", error=str(error))
        return
    if followed is Followed.DONE:
        enqueue_next(watch_nodes.name)


@shared_task(name=ADVERTISE, ignore_result=True)
def advertise_node(name: str) -> None:
    """Advertise the node's devices in its status, after its inventory changed; reconciling does it for all nodes."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        machine = None if cluster is None else kube_nodes.find(cluster, name=name)
        if cluster is not None and machine is not None:
            advertise(cluster=cluster, machines=[machine], now=database_now())
    except KubeError as error:
        log.warning("nodes.not_advertised", node=name, error=str(error))
