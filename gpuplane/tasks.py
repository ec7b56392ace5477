"""The canary: shows that beat, broker and worker work together.

Sent by the beat every few seconds; the runner and liveness probes check the age of the file it touches, and restart a
worker that receives no tasks.
"""

from __future__ import annotations

from celery import shared_task
from django.conf import settings


@shared_task(name="gpuplane.canary", ignore_result=True)
def canary() -> None:
    """Touch the file."""
    path = settings.GPUPLANE_DATA_DIR / "run" / "canary"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
