"""One device's page: what it is, who holds it, what it does now and did, its links, and its processes for those who may see all its holders."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from access.actors import Actor
from access.errors import NotFound
from access.pages import PageRequest, asked_word, page
from allocations.overviews import DeviceRow, device_rows
from audit.selectors import event_list
from nodes.history.ranges import LIVE, WORDS, known_range
from nodes.live.asked import told_of
from nodes.live.samples import DetailsView, SampleView
from nodes.models import Device
from nodes.selectors import device_list

EVENTS_SHOWN = 9


@require_GET
@page
def device(request: PageRequest, device_id: int) -> HttpResponse:
    """Everything of one device; what moves comes over `WS /ws/devices/<id>/`."""
    context = _context(request, device_id)
    found: Device = context["device"]
    context |= {
        "ranges": WORDS,
        "range": known_range(asked_word(request, "range"), default=LIVE),
        "events": event_list(actor=request.actor, node=found.node.name)[:EVENTS_SHOWN],
    }
    return render(request, "nodes/device.html", context)


@require_GET
@page
def device_state(request: PageRequest, device_id: int) -> HttpResponse:
    """Holders, links and processes alone, which the page fetches again and again."""
    return render(request, "nodes/device_state.html", _context(request, device_id) | {"is_part": True})


def may_see_processes(row: DeviceRow, actor: Actor) -> bool:
    """Whether the actor sees everybody who could run something there: processes carry no owner."""
    return actor.namespaces is None or (
        bool(row.holdings) and not row.device.is_kept and all(one.allocation is not None for one in row.holdings)
    )


def _context(request: PageRequest, device_id: int) -> dict[str, Any]:
    found = device_list().filter(pk=device_id).first()
    if found is None:
        raise NotFound("there is no such device")
    (row,) = device_rows([found], actor=request.actor)
    sample, told = told_of(found.node.name)
    details = None if told is None else told.of(found.uuid)
    return {
        "device": found,
        "row": row,
        "details": details,
        "neighbours": dict(Device.objects.filter(node=found.node).values_list("uuid", "minor")),
        "down": 0 if details is None else sum(not link.is_up for link in details.links),
        "may_see_processes": may_see_processes(row, request.actor),
        "processes_known": details is not None and details.processes is not None and _is_of_now(row, sample, told),
    }


def _is_of_now(row: DeviceRow, sample: SampleView | None, told: DetailsView | None) -> bool:
    """Whether what was told of processes is true now: the agent speaks, and has told since the last holder came."""
    if sample is None or told is None or sample.is_old(now=timezone.now().timestamp()):
        return False
    return row.last_since is None or told.received_at >= row.last_since.timestamp()
