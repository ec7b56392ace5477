"""Periodic work on nodes. The beat's schedule is in `gpuplane.celery`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import cast

import redis
import structlog
from celery import shared_task
from django.conf import settings

from audit.clock import database_now
from kube import nodes as kube_nodes
from kube.errors import KubeError
from kube.following import Followed
from kube.shared import shared_cluster
from kube.turns import turn
from nodes import services, watching
from nodes.advertise import TASK as ADVERTISE
from nodes.advertise import advertise
from nodes.history import ring, rollups
from nodes.live import presence

REDIS_SECONDS = 2.0

log = structlog.get_logger(__name__)


@shared_task(name="nodes.notice_silent_agents", ignore_result=True)
def notice_silent_agents() -> None:
    """Mark nodes whose agents fell silent, and those heard again (every 5 s). Idempotent, also beside a twin."""
    client = redis.Redis.from_url(
        settings.GPUPLANE_REDIS_URL, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
    )
    try:
        ears = cast("dict[bytes, bytes]", client.hgetall(presence.EARS))
        since, dead = presence.listening_since_of(ears, epoch=time.time())
        if dead:
            client.hdel(presence.EARS, *dead)
    except (redis.RedisError, OSError) as error:
        log.warning("nodes.silence_unknown", why=str(error))  # the broker is this Redis: the next beat tries again
        return
    finally:
        client.close()
    noticed = presence.notice_silent(now=database_now(), listening_since=since)
    if noticed != presence.Noticed():
        log.info("nodes.agents_noticed", suspect=noticed.suspect, not_ready=noticed.not_ready, ready=noticed.ready)


@shared_task(name="nodes.tasks.settle", ignore_result=True)
def settle() -> None:
    """What flapped and is steady now, and what two nodes claimed and one has left (every 5 s). Idempotent, also beside a twin."""
    now = database_now()
    steady, taken = services.health_settle(now=now), services.disputes_settle(now=now)
    if steady or taken:
        log.info("nodes.settled", devices_steady=steady, nodes_with_claims=taken)


@shared_task(name="nodes.tasks.roll_up", ignore_result=True)
def roll_up() -> None:
    """Minutes and hours of what the devices did (every 20 s); one worker at a time. Idempotent."""
    with turn(settings.GPUPLANE_REDIS_URL, "history") as ours:
        if ours is None:
            return
        now = database_now()
        connection = ring.client()
        try:
            rollups.roll_up(connection, now=now)
        except (redis.RedisError, OSError) as error:
            log.warning("history.ring_unread", why=str(error))
        finally:
            connection.close()
        rollups.roll_up_hours(now=now)


@shared_task(name="nodes.tasks.prune_history", ignore_result=True)
def prune_history() -> None:
    """Delete minutes and hours that are older than the settings say (every hour)."""
    deleted = rollups.prune(
        now=database_now(),
        minutes_kept=timedelta(hours=settings.GPUPLANE_MINUTES_KEPT_HOURS),
        hours_kept=timedelta(days=settings.GPUPLANE_HOURS_KEPT_DAYS),
    )
    log.info("history.pruned", rows=deleted)


@shared_task(name="nodes.tasks.watch_nodes", ignore_result=True)
def watch_nodes() -> None:
    """One turn of the node watch; the next follows at once, or by the beat where this one ended badly."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return
        followed = watching.watch_nodes(cluster=cluster)
    except (KubeError, redis.RedisError) as error:
        log.warning("watch.turn_failed", of="nodes", error=str(error))
        return
    if followed is Followed.DONE:
        watch_nodes.apply_async(queue="watch", expires=30)


@shared_task(name=ADVERTISE, ignore_result=True)
def advertise_node(name: str) -> None:
    """Put the node's devices into its status (an inventory has changed); reconciling does it for all."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        machine = None if cluster is None else kube_nodes.find(cluster, name=name)
        if cluster is not None and machine is not None:
            advertise(cluster=cluster, machines=[machine])
    except KubeError as error:
        log.warning("nodes.not_advertised", node=name, error=str(error))
