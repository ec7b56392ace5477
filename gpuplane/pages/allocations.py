"""Allocations: the table, one allocation, giving its devices back, and resizing a share."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from access.errors import BadInput, Conflict, Unavailable
from allocations.choices import LIVE, State
from allocations.leases.port import lease_name
from allocations.overviews import LIVE_FILTER, allocation_query, leases_of
from allocations.reservation_overviews import groups_having
from allocations.selectors import allocation_get
from allocations.services import allocation_release, allocation_resize
from audit.selectors import event_list
from claims.dialects.request import Dialect
from gpuplane.pages.form_fields import FormProblem, form_problem, word
from gpuplane.pages.page import PageRequest, may_write, page, query_word, query_words
from gpuplane.pages.slices import slice_of
from storage.clock import database_now

EVENTS_SHOWN = 50
RELEASABLE = (State.HELD, State.BOUND)


@require_safe
@page
def allocation_table(request: PageRequest) -> HttpResponse:
    """Allocations with filters; without one, those that count as used."""
    filters = query_words(request, "namespace", "node", search="q")
    state = query_word(request, "state") or LIVE_FILTER
    found = slice_of(allocation_query(actor=request.actor, state=state, **filters), request)
    context = filters | {
        "state": state,
        "slice": found,
        "states": State.choices,
        "filtered": state != LIVE_FILTER or any(filters.values()),
    }
    return render(request, "allocations/list.html", context)


@require_safe
@page
def allocation(request: PageRequest, allocation_id: UUID) -> HttpResponse:
    """Devices, leases, times and timeline."""
    return _one(request, allocation_id)


def _one(request: PageRequest, allocation_id: UUID, problem: FormProblem | None = None) -> HttpResponse:
    """The page; with a problem the form that resizes the share keeps what was typed."""
    found = allocation_get(uid=allocation_id, actor=request.actor)
    devices = list(found.devices.all())
    live = found.state in LIVE
    names = [lease_name(device.type, found.node.name, device.minor) for device in devices]
    may_change = may_write(request.actor, found.namespace) and found.dialect != Dialect.SLOT
    context = {
        "allocation": found,
        "devices": devices,
        "live": live,
        "groups": groups_having(found) if live else [],
        "leases": leases_of(names, actor=request.actor) if live else [],
        "events": event_list(actor=request.actor, allocation=found.pk)[:EVENTS_SHOWN],
        "reasons": sorted(found.explanation.items(), key=lambda item: -item[1]),
        "may_resize": found.state == State.BOUND and any(not device.whole for device in devices) and may_change,
        "may_release": found.state in RELEASABLE and may_change,
        "sent": request.POST,
        "problem": problem,
    }
    return render(request, "allocations/one.html", context, status=200 if problem is None else 400)


@require_POST
@page
def release(request: PageRequest, allocation_id: UUID) -> HttpResponse:
    """Release the devices; with `evict` the pod is evicted first."""
    found = allocation_get(uid=allocation_id, actor=request.actor)
    request.actor.require_write(found.namespace)
    try:
        after = allocation_release(
            allocation=found, actor=request.actor, evict=request.POST.get("evict") == "true", now=database_now()
        )
    except (BadInput, Conflict, Unavailable) as error:
        messages.error(request, str(error))
    else:
        ended = after.state not in LIVE
        messages.success(request, "The devices are returned." if ended else "The devices are being returned.")
    return redirect("allocation", allocation_id)


@require_POST
@page
def resize(request: PageRequest, allocation_id: UUID) -> HttpResponse:
    """Give the share other amounts; an empty field leaves its amount. A refusal shows the page again."""
    found = allocation_get(uid=allocation_id, actor=request.actor)
    request.actor.require_write(found.namespace)
    core, memory = word(request, "core"), word(request, "memory")
    try:
        allocation_resize(
            allocation=found,
            actor=request.actor,
            core=_percent(core),
            memory=memory or None,
            now=database_now(),
        )
    except (BadInput, Conflict, Unavailable) as error:
        return _one(request, allocation_id, form_problem(error, otherwise="resize"))
    messages.success(request, "The share has its new amounts; its containers get new limits when they restart.")
    return redirect("allocation", allocation_id)


def _percent(text: str) -> int | None:
    """The number, None for an empty field. Raises BadInput."""
    if text and not (text.isascii() and text.isdecimal()):
        raise BadInput("core is a whole number of percent", field="core", rule="type")
    return int(text) if text else None
