"""The Celery application: broker and queues. When which task runs is in `gpuplane.beat`.

Loaded with Django (`gpuplane.apps`), served by the processes `worker`, `watch` and `beat` of the Procfile.
Kept true: a worker without a broker keeps trying for ever (see `gpuplane.broker`, `gpuplane.worker`), also when
the broker is there and refuses, being full or still loading; a task whose worker died is given out again.
"""

from __future__ import annotations

import os
import warnings
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.signals import setup_logging, worker_ready, worker_shutdown, worker_shutting_down
from django.conf import settings
from kombu.transport import TRANSPORT_ALIASES

from gpuplane.relay import Relay, connect
from kube import turns

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")

DEFAULT_QUEUE = "default"
WATCH_QUEUE = "watch"
WATCHES = (
    "allocations.tasks.watch_pods",
    "allocations.tasks.watch_scheduling_events",
    "nodes.tasks.watch_nodes",
    "claims.tasks.watch_claims",
)
"""Tasks that hold a watch in turns; the worker of their queue needs a thread for each."""


def broker_url(redis_url: str) -> str:
    """Celery's spelling of a Redis address: `unix:///path` becomes `redis+socket:///path`."""
    parts = urlsplit(redis_url)
    return f"redis+socket://{parts.path}" if parts.scheme == "unix" else redis_url


# Inside a container everything is root, and the danger it warns of is pickle, which we do not accept.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "gpuplane.broker:Transport"))

app = Celery("gpuplane")
app.conf.update(
    broker_url=broker_url(settings.GPUPLANE_REDIS_URL),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    # max_retries: of a connection that sends. A request that sends a task would wait six seconds for a broker that is away.
    broker_transport_options={
        "visibility_timeout": 600,
        "global_keyprefix": "gpuplane:celery:",
        "socket_timeout": 30,
        "max_retries": 0,
    },
    task_default_queue=DEFAULT_QUEUE,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_consumer="gpuplane.worker:Consumer",
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    result_expires=None,
    timezone="UTC",
    beat_scheduler="gpuplane.beat:Scheduler",
    beat_max_loop_interval=5,
    beat_schedule_filename=str(settings.GPUPLANE_DATA_DIR / "beat-schedule"),
)
app.set_default()
app.autodiscover_tasks()


@setup_logging.connect
def _keep_logging(**_: Any) -> None:
    """Celery leaves logging as Django's settings set it up."""


@worker_ready.connect
def _compare_at_once(**_: Any) -> None:
    """On start the ledger is compared with the cluster, and followed, before the first period is over (LEASE-6)."""
    app.send_task("allocations.tasks.reconcile", expires=60)
    if settings.GPUPLANE_KUBECONFIG:
        for watch in WATCHES:
            app.send_task(watch, queue=WATCH_QUEUE, expires=60)


_relay = Relay(connect(settings.GPUPLANE_REDIS_URL))


@worker_ready.connect
def _relay_what_is_counted(**_: Any) -> None:
    """A worker has no door at which it could be scraped."""
    _relay.start()


@worker_shutdown.connect
def _relay_the_rest(**_: Any) -> None:
    _relay.stop()


@worker_shutting_down.connect
def _end_turns(**_: Any) -> None:
    """A watch in the middle of its turn would hold the shutdown up."""
    turns.stop_all()
