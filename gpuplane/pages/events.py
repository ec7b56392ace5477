"""The events page, and the newest few for the fleet page."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from audit.selectors import GROUPS, event_list, event_query
from gpuplane.pages.page import PageRequest, page, query_words
from gpuplane.pages.slices import slice_of

NEWEST = 8


@require_safe
@page
def events(request: PageRequest) -> HttpResponse:
    """Everything that happened, newest first, with filters."""
    filters = query_words(request, "group", "namespace", "node", search="q")
    found = slice_of(event_query(actor=request.actor, **filters), request)
    context = filters | {"slice": found, "groups": list(GROUPS), "filtered": any(filters.values())}
    return render(request, "audit/events.html", context)


@require_safe
@page
def newest(request: PageRequest) -> HttpResponse:
    """The last few events, for the fleet page."""
    return render(request, "audit/newest.html", {"events": event_list(actor=request.actor)[:NEWEST]})
