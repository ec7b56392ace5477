"""A node's page, and what the heatmap shows of holders: one device's card, and the fleet's holders by name. They stand above `nodes`, since the ledger does."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from django.http import HttpResponse, HttpResponseBadRequest
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from access.errors import NotFound
from access.pages import PageRequest, asked_word, page
from access.selectors import team_of_namespace
from allocations.fleet_holders import ANSWERS, By
from allocations.leases.port import lease_name
from allocations.overviews import device_rows, leases_of
from audit.selectors import event_list
from nodes.disputes import disputed_of
from nodes.drawing import DRAWN_MOST, draw, switch_rows
from nodes.history.ranges import LIVE, WORDS, known_range
from nodes.live.asked import latest_for
from nodes.models import Device
from nodes.overviews import link_matrix
from nodes.selectors import device_list, node_devices, node_get

EVENTS_SHOWN = 9
LEASES_SHOWN = 32
"""Devices of a node whose leases its page shows: with a cluster each is a request to the API server."""


@require_GET
@page
def node(request: PageRequest, name: str) -> HttpResponse:
    """Devices with holders, the link matrix, leases and events of one node."""
    context = _devices(request, name)
    devices: list[Device] = context["devices"]
    whole = [one for one in devices if not one.parent]
    gpus = [one for one in whole if one.type == "gpu"]
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
        "range": known_range(asked_word(request, "range"), default=LIVE),
        "leases": leases_of(
            [lease_name(device.type, context["node"].name, device.minor) for device in devices[:LEASES_SHOWN]],
            actor=request.actor,
        ),
        "events": event_list(actor=request.actor, node=context["node"].name)[:EVENTS_SHOWN],
        "labels": sorted(context["node"].labels.items()),
        "disputed": disputed_of(context["node"]),
    }
    return render(request, "nodes/one.html", context)


@require_GET
@page
def node_devices_part(request: PageRequest, name: str) -> HttpResponse:
    """The table of devices alone, which the page fetches again and again."""
    return render(request, "nodes/devices.html", _devices(request, name))


@require_GET
@page
def device_card(request: PageRequest, device_id: int) -> HttpResponse:
    """Who holds one device, for the heatmap's card."""
    device = device_list().filter(pk=device_id).first()
    if device is None:
        raise NotFound("there is no such device")
    (row,) = device_rows([device], actor=request.actor)
    return render(request, "fleet/card.html", {"row": row})


@require_GET
@page
def fleet_holders_part(request: PageRequest) -> HttpResponse:
    """`{"names": {name: [device id, …]}, "others": [device id, …]}`: who holds what, as far as this user may know, `?by=` team, namespace, pod or claim."""
    try:
        by = By(request.GET.get("by", By.TEAM))
    except ValueError:
        return HttpResponseBadRequest(f"by must be one of {', '.join(By)}", content_type="text/plain")
    team_of = team_of_namespace(cast("User", request.user), request.actor) if by is By.TEAM else {}
    found = ANSWERS.of(actor=request.actor, by=by, team_of=team_of)
    return HttpResponse(found, content_type="application/json")


def _devices(request: PageRequest, name: str) -> dict[str, Any]:
    found = node_get(name)
    devices = list(node_devices(found).select_related("node").defer("node__links", "node__disputed"))
    sample = latest_for(request).get(found.name)
    now = timezone.now()
    if sample is not None and sample.is_old(now=now.timestamp()):
        sample = None
    every = [device for device in devices if device.type == "gpu"]
    gpus = [device for device in every if not device.parent]
    return {
        "node": found,
        "devices": devices,
        "rows": device_rows(devices, actor=request.actor, samples={} if sample is None else {found.name: sample}),
        "sample": sample,
        "gpu_count": len(gpus),
        "gpu_used": len({gpu.parent or gpu.uuid for gpu in every if gpu.is_held}),
        "memory_bytes": sum(gpu.memory_bytes for gpu in gpus),
        "memory_used": sum(gpu.memory_used for gpu in every),
        "islands": len({gpu.island for gpu in gpus}),
        "models": sorted({gpu.model for gpu in gpus if gpu.model}),
    }
