"""One device's page: its holders, samples, history and links; its processes for those who may see all its holders."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from allocations.overviews import DeviceRow, device_rows, may_see_processes
from allocations.reservation_overviews import groups_on
from audit.selectors import event_list
from gpuplane.pages.page import PageRequest, page, query_word
from nodes.history.ranges import LIVE, WORDS, known_range
from nodes.live.reads import latest_of
from nodes.live.samples import DetailsView, SampleView
from nodes.selectors import device_get, device_minors

EVENTS_SHOWN = 9


@require_safe
@page
def device(request: PageRequest, device_id: int) -> HttpResponse:
    """Everything of one device; what moves comes over `WS /ws/devices/<id>/`."""
    context = _context(request, device_id)
    context |= {"ranges": WORDS, "range": known_range(query_word(request, "range"), default=LIVE)}
    return render(request, "nodes/device.html", context)


@require_safe
@page
def device_state(request: PageRequest, device_id: int) -> HttpResponse:
    """Holders, links, processes and events alone, which the page fetches when its stream says that they changed."""
    return render(request, "nodes/device_state.html", _context(request, device_id) | {"is_part": True})


def _context(request: PageRequest, device_id: int) -> dict[str, Any]:
    found = device_get(device_id)
    groups = groups_on([found], actor=request.actor)
    (row,) = device_rows([found], actor=request.actor, groups=groups)
    sample, reported = latest_of(found.node.name)
    details = None if reported is None else reported.of(found.uuid)
    return {
        "device": found,
        "row": row,
        "groups": list(groups.values()),
        "details": details,
        "events": event_list(actor=request.actor, node=found.node.name)[:EVENTS_SHOWN],
        "neighbours": device_minors(found.node),
        "down": 0 if details is None else sum(not link.is_up for link in details.links),
        "may_see_processes": may_see_processes(row, request.actor),
        "processes_known": details is not None and details.processes is not None and _is_current(row, sample, reported),
    }


def _is_current(row: DeviceRow, sample: SampleView | None, details: DetailsView | None) -> bool:
    """Whether the processes are known: the agent reports, and has reported them since the last holder came."""
    if sample is None or details is None or sample.is_old(now=timezone.now().timestamp()):
        return False
    return row.last_since is None or details.received_at >= row.last_since.timestamp()
