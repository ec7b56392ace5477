"""Usage of the fleet over time, and GPUs that are held but idle."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from allocations.overviews import device_rows
from gpuplane.pages.page import PageRequest, page, query_word
from gpuplane.pages.slices import slice_of
from nodes.history import series
from nodes.history.ranges import LONG, known_range
from nodes.history.totals import EVERYTHING


@require_GET
@page
def usage(request: PageRequest) -> HttpResponse:
    """Charts by range and group, and the list of idle devices."""
    groups = series.groups_known()
    group = query_word(request, "group")
    context = {
        "ranges": LONG,
        "range": known_range(query_word(request, "range"), default="24h"),
        "groups": [(name, group_words(name)) for name in groups],
        "group": group if group in groups else EVERYTHING,
    }
    return render(request, "fleet/usage.html", context | _idle(request))


@require_GET
@page
def idle(request: PageRequest) -> HttpResponse:
    """The list of idle GPUs alone, for refreshes."""
    return render(request, "fleet/idle.html", _idle(request))


def group_words(name: str) -> str:
    """`model:H100` → `Model H100`."""
    kind, _, value = name.partition(":")
    return "Whole fleet" if kind == EVERYTHING else f"{kind.capitalize()} {value or 'unknown'}"


def _idle(request: PageRequest) -> dict[str, object]:
    found = slice_of(series.idle_devices(), request, counted=True)
    rows = device_rows(found.rows, actor=request.actor)
    return {"slice": found, "rows": rows}
