"""History as JSON for the charts of pages, and as CSV to keep. Everybody who is signed in may see it: it says nothing of who held a device.

Called by `gpuplane.pages`. Kept true: an unknown range is the default one; with Redis away the live range is empty and says so; a point is
[time, …] in seconds since 1970, and null where nothing was measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import redis
import structlog
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from access.errors import NotFound
from access.pages import PageRequest, asked_word, page
from nodes.history import ring, series
from nodes.history.ranges import LIVE, RANGES, known_range
from nodes.history.series import Series
from nodes.history.totals import EVERYTHING
from nodes.models import Device, Node
from nodes.selectors import device_list, node_devices, node_get

log = structlog.get_logger(__name__)


@require_GET
@page
def device_history(request: PageRequest, device_id: int) -> HttpResponse:
    """Means and largest values of one device (`?range=`)."""
    device = _device(device_id)
    asked = known_range(asked_word(request, "range"), default=LIVE)
    found = _of(device.node, [device.uuid], asked)[device.uuid]
    columns = {
        name: {"mean": found.means[name], "max": found.largest[name]}
        for name in found.means
        if any(value is not None for value in found.means[name])
    }
    return _json(asked, found, columns=columns)


@require_GET
@page
def device_history_csv(request: PageRequest, device_id: int) -> HttpResponse:
    """The same to keep."""
    device = _device(device_id)
    asked = known_range(asked_word(request, "range"), default="24h")
    found = _of(device.node, [device.uuid], asked)[device.uuid]
    return _csv(series.csv_rows(found), f"{device.node.name}-{device.type}-{device.minor}-{asked}.csv")


@require_GET
@page
def node_history(request: PageRequest, name: str) -> HttpResponse:
    """Means of every GPU of one node (`?range=`), of the columns asked for (`?columns=a,b`)."""
    node = node_get(name)
    gpus = [device for device in node_devices(node) if device.type == "gpu" and not device.parent]
    asked = known_range(asked_word(request, "range"), default=LIVE)
    found = _of(node, [gpu.uuid for gpu in gpus], asked)
    some = next(iter(found.values()), Series.empty())
    wanted = [name for name in asked_word(request, "columns", longest=300).split(",") if name in some.means]
    columns = {name: [found[gpu.uuid].means[name] for gpu in gpus] for name in wanted}
    devices = [{"id": gpu.pk, "minor": gpu.minor, "uuid": gpu.uuid} for gpu in gpus]
    return _json(asked, some, devices=devices, columns=columns)


@require_GET
@page
def fleet_history(request: PageRequest) -> HttpResponse:
    """Totals of the fleet, or a group of it (`?group=model:H100`), over a range of minutes or more."""
    group, asked, found = _fleet(request)
    return _json(asked, found, group=group, columns=found.means)


@require_GET
@page
def fleet_history_csv(request: PageRequest) -> HttpResponse:
    """The same to keep."""
    group, asked, found = _fleet(request)
    name = "".join(letter if letter.isalnum() else "-" for letter in group)
    return _csv(series.csv_rows(found), f"fleet-{name}-{asked}.csv")


def _fleet(request: PageRequest) -> tuple[str, str, Series]:
    group = asked_word(request, "group") or EVERYTHING
    asked = known_range(asked_word(request, "range"), default="24h")
    now = timezone.now()
    return group, asked, series.fleet_series(group=group, since=now - RANGES[asked], until=now)


def _device(pk: int) -> Device:
    found = device_list().filter(pk=pk).first()
    if found is None:
        raise NotFound("there is no such device")
    return found


def _of(node: Node, uuids: Sequence[str], asked: str) -> Mapping[str, Series]:
    """One series a GPU, empty where nothing is known."""
    now = timezone.now()
    if asked != LIVE:
        return series.node_series(node, uuids, since=now - RANGES[asked], until=now)
    connection = ring.client()
    try:
        found = series.last_seconds(connection, node.name, uuids, until=now.timestamp() + ring.SLACK_SECONDS)
    except (redis.RedisError, OSError) as error:
        log.info("history.ring_unread", node=node.name, why=str(error))
        found = {}
    finally:
        connection.close()
    return {uuid: found.get(uuid) or Series.empty() for uuid in uuids}


def _json(asked: str, found: Series, **more: Any) -> HttpResponse:
    about = {
        "range": asked,
        "seconds": RANGES[asked].total_seconds(),
        "until": timezone.now().timestamp(),
        "step": found.step,
        "times": found.times,
    }
    return HttpResponse(orjson.dumps(about | more), content_type="application/json")


def _csv(rows: Any, name: str) -> HttpResponse:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return HttpResponse(
        text.getvalue(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
