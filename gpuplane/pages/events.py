"""The events page. It stands here because `audit` is the lowest room and knows nothing of accounts."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from access.pages import PageRequest, asked_word, page, slice_of
from audit.overviews import GROUPS, event_query
from audit.selectors import event_list

NEWEST = 8


@require_GET
@page
def events(request: PageRequest) -> HttpResponse:
    """Everything that happened, newest first, with filters."""
    asked = {name: asked_word(request, key) for name, key in
             (("search", "q"), ("group", "group"), ("namespace", "namespace"), ("node", "node"))}  # fmt: skip
    found = slice_of(event_query(actor=request.actor, **asked), request.GET.get("page"))
    context = asked | {"slice": found, "groups": list(GROUPS), "filtered": any(asked.values())}
    return render(request, "audit/events.html", context)


@require_GET
@page
def newest(request: PageRequest) -> HttpResponse:
    """The last few events, for the fleet page."""
    return render(request, "audit/newest.html", {"events": event_list(actor=request.actor)[:NEWEST]})
