"""The fleet page and the table of nodes. A node's own page shows who holds what, so it is in `allocations.views`."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from access.pages import PageRequest, asked_word, page
from nodes.choices import NodeState
from nodes.overviews import models_known, node_query, node_rows


@require_GET
@page
def fleet(request: PageRequest) -> HttpResponse:
    """The live heatmap; everything that moves comes over `WS /ws/fleet/`."""
    return render(request, "fleet/fleet.html")


@require_GET
@page
def node_table(request: PageRequest) -> HttpResponse:
    """All nodes: search, filters, sorting; refreshes itself."""
    search, state, model = asked_word(request, "q"), asked_word(request, "state"), asked_word(request, "model")
    sort = asked_word(request, "sort") or "name"
    nodes = node_query(search=search, state=state, model=model, sort=sort)
    context = {
        "slice": node_rows(nodes, request.GET.get("page")),
        "search": search,
        "state": state,
        "model": model,
        "sort": sort,
        "states": NodeState.choices,
        "models": models_known(),
        "filtered": bool(search or state or model),
    }
    return render(request, "nodes/list.html", context)
