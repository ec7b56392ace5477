"""Queues as a tree, one queue with who waits in it, gangs, and one gang with its members."""

from __future__ import annotations

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from allocations.queue_overviews import gang_overview, gang_query, queue_overview, queue_tree
from allocations.queue_statuses import gang_statuses
from audit.selectors import event_list
from gpuplane.pages.page import PageRequest, page, query_words
from gpuplane.pages.slices import slice_of

EVENTS_SHOWN = 15


@require_safe
@page
def queue_table(request: PageRequest) -> HttpResponse:
    """The tree with what each queue deserves, is due and holds, by model."""
    return render(request, "queues/list.html", {"rows": queue_tree()})


@require_safe
@page
def queue(request: PageRequest, name: str) -> HttpResponse:
    """One queue: its bars, who waits in which place and why, who holds its devices."""
    found = queue_overview(name, actor=request.actor)
    if found is None:
        raise Http404(f"there is no queue {name}")
    return render(request, "queues/one.html", {"queue": found})


@require_safe
@page
def gang_table(request: PageRequest) -> HttpResponse:
    """Gangs of the namespaces seen."""
    filters = query_words(request, "namespace", search="q")
    found = slice_of(gang_query(actor=request.actor, **filters), request, counted=True)
    statuses = gang_statuses(found.rows)
    rows = [{"gang": gang, "status": statuses[gang.pk]} for gang in found.rows]
    context = filters | {"slice": found.with_rows(rows), "filtered": any(filters.values())}
    return render(request, "queues/gangs.html", context)


@require_safe
@page
def gang(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """One gang: its pods by node, and what it waits for."""
    found = gang_overview(namespace, name, actor=request.actor)
    events = event_list(actor=request.actor, namespace=namespace, name=name)[:EVENTS_SHOWN]
    return render(request, "queues/gang.html", {"found": found, "events": events})
