"""History as JSON for charts, and as CSV. It names no holders, so every signed-in user may see it.

Invariants: an unknown range is the default one; with Redis away the live range is empty; times are in seconds since
1970, and null is a value that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import structlog
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from gpuplane.csv_files import csv_response
from gpuplane.pages.page import PageRequest, page, query_word
from kube.device_types import GPU
from nodes.history import ring, series
from nodes.history.ranges import LIVE, RANGES, known_range
from nodes.history.series import Series
from nodes.history.totals import EVERYTHING
from nodes.models import Node
from nodes.selectors import device_get, node_devices, node_get
from storage.clock import database_now
from storage.redis_client import REDIS_ERRORS

log = structlog.get_logger(__name__)


@require_safe
@page
def device_history(request: PageRequest, device_id: int) -> HttpResponse:
    """Means and largest values of one device (`?range=`)."""
    device = device_get(device_id)
    range_name = known_range(query_word(request, "range"), default=LIVE)
    now = database_now()
    found = _of(device.node, [device.uuid], range_name, now)[device.uuid]
    columns = {
        name: {"mean": found.means[name], "max": found.largest[name]}
        for name in found.means
        if any(value is not None for value in found.means[name])
    }
    return _json(range_name, found, now, columns=columns)


@require_safe
@page
def device_history_csv(request: PageRequest, device_id: int) -> HttpResponse:
    """The same as CSV."""
    device = device_get(device_id)
    range_name = known_range(query_word(request, "range"), default="24h")
    found = _of(device.node, [device.uuid], range_name, database_now())[device.uuid]
    return csv_response(series.csv_rows(found), f"{device.node.name}-{device.type}-{device.minor}-{range_name}.csv")


@require_safe
@page
def node_history(request: PageRequest, name: str) -> HttpResponse:
    """Means of every GPU of one node (`?range=`), of some columns (`?columns=a,b`)."""
    node = node_get(name)
    gpus = [device for device in node_devices(node) if device.type == GPU and not device.parent]
    range_name = known_range(query_word(request, "range"), default=LIVE)
    now = database_now()
    found = _of(node, [gpu.uuid for gpu in gpus], range_name, now)
    some = next(iter(found.values()), Series.empty())
    names = [name for name in query_word(request, "columns", longest=300).split(",") if name in some.means]
    columns = {name: [found[gpu.uuid].means[name] for gpu in gpus] for name in names}
    devices = [{"id": gpu.pk, "minor": gpu.minor, "uuid": gpu.uuid} for gpu in gpus]
    return _json(range_name, some, now, devices=devices, columns=columns)


@require_safe
@page
def fleet_history(request: PageRequest) -> HttpResponse:
    """Totals of the fleet, or a group of it (`?group=model:H100`), over a range of minutes or more."""
    now = database_now()
    group, range_name, found = _fleet(request, now)
    return _json(range_name, found, now, group=group, columns=found.means)


@require_safe
@page
def fleet_history_csv(request: PageRequest) -> HttpResponse:
    """The same as CSV."""
    group, range_name, found = _fleet(request, database_now())
    name = "".join(letter if letter.isalnum() else "-" for letter in group)
    return csv_response(series.csv_rows(found), f"fleet-{name}-{range_name}.csv")


def _fleet(request: PageRequest, now: datetime) -> tuple[str, str, Series]:
    group = query_word(request, "group") or EVERYTHING
    range_name = known_range(query_word(request, "range"), default="24h")
    return group, range_name, series.fleet_series(group=group, since=now - RANGES[range_name], until=now)


def _of(node: Node, uuids: Sequence[str], range_name: str, now: datetime) -> Mapping[str, Series]:
    """One series a GPU, empty where there is none."""
    if range_name != LIVE:
        return series.node_series(node, uuids, since=now - RANGES[range_name], until=now)
    connection = ring.client()
    try:
        found = series.last_seconds(connection, node.name, uuids, until=now.timestamp() + ring.SLACK_SECONDS)
    except REDIS_ERRORS as error:
        log.info("history.ring_unread", node=node.name, why=str(error))
        found = {}
    finally:
        connection.close()
    return {uuid: found.get(uuid) or Series.empty() for uuid in uuids}


def _json(range_name: str, found: Series, now: datetime, **more: Any) -> HttpResponse:
    about = {
        "range": range_name,
        "seconds": RANGES[range_name].total_seconds(),
        "until": now.timestamp(),
        "step": found.step,
        "times": found.times,
    }
    return HttpResponse(orjson.dumps(about | more), content_type="application/json")
