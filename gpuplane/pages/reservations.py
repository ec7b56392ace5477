"""Reservations: the groups of GPUs behind reservation pods, and nodes that begin no new group for now."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from allocations.choices import GroupState
from allocations.reservation_overviews import group_query, group_views, nodes_put_off
from gpuplane.fresh_samples import fresh_samples
from gpuplane.pages.page import PageRequest, page, query_words
from gpuplane.pages.slices import slice_of
from storage.clock import database_now


@require_safe
@page
def reservation_table(request: PageRequest) -> HttpResponse:
    """Groups with their sharers and memory, unprotected ones first; without a filter those that are not gone."""
    filters = query_words(request, "node", "state", search="q")
    found = slice_of(group_query(**filters), request, counted=True)
    views = group_views(found.rows, actor=request.actor, samples=fresh_samples())
    context = filters | {
        "slice": found.with_rows(views),
        "states": GroupState.choices,
        "filtered": any(filters.values()),
        "put_off": nodes_put_off(now=database_now()),
    }
    return render(request, "reservations/list.html", context)
