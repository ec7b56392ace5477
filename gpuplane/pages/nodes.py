"""Nodes: the table, and a node's page with its devices, their holders and links."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from allocations.leases.port import lease_name
from allocations.overviews import device_rows, leases_of
from allocations.reservation_overviews import groups_on, node_put_off
from audit.selectors import event_list
from gpuplane.pages.page import PageRequest, page, query_word, query_words
from gpuplane.pages.slices import slice_of
from kube.device_types import GPU
from nodes.choices import NodeState
from nodes.disputed_devices import disputed_of
from nodes.drawing import DRAWN_MOST, draw, switch_rows
from nodes.history.ranges import LIVE, WORDS, known_range
from nodes.live.reads import latest_samples
from nodes.models import Device
from nodes.overviews import link_matrix, models_known, node_query, node_row, node_rows
from nodes.selectors import node_devices, node_get
from storage.clock import database_now

EVENTS_SHOWN = 9
LEASES_SHOWN = 32
"""Devices of a node whose leases its page shows: with a cluster each is a request to the API server."""


@require_safe
@page
def node_table(request: PageRequest) -> HttpResponse:
    """All nodes: search, filters, sorting; refreshes itself."""
    filters = query_words(request, "state", "model", search="q")
    sort = query_word(request, "sort") or "name"
    found = slice_of(node_query(sort=sort, **filters), request, counted=True)
    context = filters | {
        "slice": found.with_rows(node_rows(found.rows)),
        "sort": sort,
        "states": NodeState.choices,
        "models": models_known(),
        "filtered": any(filters.values()),
    }
    return render(request, "nodes/list.html", context)


@require_safe
@page
def node(request: PageRequest, name: str) -> HttpResponse:
    """Devices with holders, the link matrix, leases and events of one node."""
    context = _devices(request, name)
    devices: list[Device] = context["devices"]
    whole = [one for one in devices if not one.parent]
    gpus = [one for one in whole if one.type == GPU]
    drawing = draw(whole, context["node"].links)
    context |= {
        "matrix": link_matrix(gpus, context["node"].links),
        "gpus_json": msgspec.json.encode(
            [{"minor": one.minor, "uuid": one.uuid} for one in gpus[:DRAWN_MOST]]
        ).decode(),
        "drawing": drawing,
        "switches": switch_rows(whole) if drawing is None and gpus else [],
        "drawn_most": DRAWN_MOST,
        "ranges": WORDS,
        "range": known_range(query_word(request, "range"), default=LIVE),
        "leases": leases_of(
            [lease_name(device.type, context["node"].name, device.minor) for device in devices[:LEASES_SHOWN]],
            actor=request.actor,
        ),
        "events": event_list(actor=request.actor, node=context["node"].name)[:EVENTS_SHOWN],
        "models": sorted(context["summary"].models),
        "labels": sorted(context["node"].labels.items()),
        "disputed": disputed_of(context["node"]),
        "put_off": node_put_off(context["node"], now=database_now()),
    }
    return render(request, "nodes/one.html", context)


@require_safe
@page
def node_devices_part(request: PageRequest, name: str) -> HttpResponse:
    """The table of devices alone, which the page fetches when its stream says that it changed."""
    return render(request, "nodes/devices.html", _devices(request, name))


def _devices(request: PageRequest, name: str) -> dict[str, Any]:
    found = node_get(name)
    devices = list(node_devices(found).select_related("node").defer("node__links", "node__disputed"))
    sample = latest_samples().get(found.name)
    if sample is not None and sample.is_old(now=timezone.now().timestamp()):
        sample = None
    groups = groups_on(devices, actor=request.actor)
    return {
        "node": found,
        "devices": devices,
        "groups": list(groups.values()),
        "rows": device_rows(
            devices, actor=request.actor, samples={} if sample is None else {found.name: sample}, groups=groups
        ),
        "summary": node_row(found, devices),
    }
