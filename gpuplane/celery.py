"""The Celery application: broker and queues. When which task runs is in `gpuplane.beat`.

Loaded with Django (`gpuplane.apps`), served by the processes `worker`, `watch` and `beat` of the Procfile.
Invariants: a worker without a broker keeps trying for ever (`gpuplane.broker`, `gpuplane.worker`), also while the
broker refuses, being full or still loading; a task whose worker died is delivered again.
"""

from __future__ import annotations

import os
import warnings
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.signals import celeryd_init, setup_logging, worker_ready, worker_shutdown, worker_shutting_down
from django.conf import settings
from kombu.transport import TRANSPORT_ALIASES

from gpuplane.data_folder import be_writable
from gpuplane.errors import refusals_end_the_program
from gpuplane.metrics_relay import Relay
from storage import leader_lock
from storage.enqueue import WATCH_QUEUE
from storage.redis_client import Purpose, client

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
with refusals_end_the_program():
    settings.GPUPLANE_REDIS_URL  # noqa: B018 - reads the settings, before Celery would print a traceback

DEFAULT_QUEUE = "default"
WATCHES = (
    "allocations.tasks.watch_pods",
    "allocations.tasks.watch_scheduling_events",
    "allocations.tasks.run_queues",
    "nodes.tasks.watch_nodes",
    "claims.tasks.watch_claims",
    "claims.tasks.watch_gangs",
    "claims.tasks.watch_queues",
    "autoscaling.tasks.watch_node_pools",
    "autoscaling.tasks.watch_node_claims",
    "autoscaling.tasks.run_growth",
    "inference.tasks.run_slots",
)
"""Tasks that each hold a watch; the worker of their queue needs a thread for each."""


def broker_url(redis_url: str) -> str:
    """Celery's spelling of a Redis address: `unix:///path` becomes `redis+socket:///path`."""
    parts = urlsplit(redis_url)
    return f"redis+socket://{parts.path}" if parts.scheme == "unix" else redis_url


# Inside a container everything is root, and the danger it warns of is pickle, which is not accepted.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "gpuplane.broker:Transport"))

app = Celery("gpuplane")
app.conf.update(
    broker_url=broker_url(settings.GPUPLANE_REDIS_URL),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    # max_retries: of a sending connection, or a request that sends a task would wait six seconds for a missing broker
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
)
app.set_default()
app.autodiscover_tasks()


@setup_logging.connect
def _keep_logging(**_: Any) -> None:
    """Leave logging as Django's settings set it up."""


@celeryd_init.connect
def _check_the_data_folder(**_: Any) -> None:
    """End a worker that could not write its canary."""
    with refusals_end_the_program():
        be_writable(settings.GPUPLANE_DATA_DIR)


@worker_ready.connect
def _start_at_once(**_: Any) -> None:
    """Reconcile and start the watches before their first period is over (LEASE-6)."""
    app.send_task("allocations.tasks.reconcile", expires=60)
    if settings.GPUPLANE_KUBECONFIG:
        for watch in WATCHES:
            app.send_task(watch, queue=WATCH_QUEUE, expires=60)


_relay = Relay(client(settings.GPUPLANE_REDIS_URL, Purpose.WORK))


@worker_ready.connect
def _start_relay(**_: Any) -> None:
    _relay.start()


@worker_shutdown.connect
def _stop_relay(**_: Any) -> None:
    _relay.stop()


@worker_shutting_down.connect
def _stop_watches(**_: Any) -> None:
    """Stop running watches, which would delay the shutdown."""
    leader_lock.shut_down()
