"""Gauges of growth for `fleet/metrics/`, from the rows. Counters are in `autoscaling.counters`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db.models import Min

from autoscaling.choices import COMING, TriggerState
from autoscaling.models import Trigger
from storage.clock import database_now

WINDOW: Final = timedelta(hours=1)


def growth_metrics() -> str:
    """Prometheus' text format."""
    now = database_now()
    active = Trigger.objects.filter(state__in=COMING).exclude(state=TriggerState.READY)
    oldest = active.aggregate(Min("created_at"))["created_at__min"]
    waits = max((now - oldest).total_seconds(), 0) if oldest is not None else 0
    ended = Trigger.objects.filter(ended_at__gt=now - WINDOW)
    served = ended.filter(state=TriggerState.SERVED).count()
    failed = ended.filter(state=TriggerState.FAILED).count()
    lines = [
        ("gpuplane_trigger_pods_active", "Trigger pods whose node is not ready yet", active.count()),
        ("gpuplane_trigger_pod_oldest_seconds", "Age of the oldest of them", waits),
    ]
    text = "Nodes that serve, of those that were wanted and ended in the last hour; NaN where none has"
    lines.append(("gpuplane_scaling_success_ratio", text, served / (served + failed) if served + failed else "NaN"))
    return "".join(f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, text, value in lines)
