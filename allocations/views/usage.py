"""How the fleet was used: allocated against used over time, and who holds GPUs and leaves them idle."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from access.pages import PageRequest, asked_word, page, slice_of
from allocations.overviews import device_rows
from nodes.history import series
from nodes.history.ranges import LONG, known_range
from nodes.history.totals import EVERYTHING


@require_GET
@page
def usage(request: PageRequest) -> HttpResponse:
    """Charts by range and group, and the list of idle devices."""
    groups = series.groups_known()
    asked = asked_word(request, "group")
    context = {
        "ranges": LONG,
        "range": known_range(asked_word(request, "range"), default="24h"),
        "groups": [(name, group_words(name)) for name in groups],
        "group": asked if asked in groups else EVERYTHING,
    }
    return render(request, "fleet/usage.html", context | _idle(request))


@require_GET
@page
def idle(request: PageRequest) -> HttpResponse:
    """The list alone, which the page fetches again and again."""
    return render(request, "fleet/idle.html", _idle(request))


def group_words(name: str) -> str:
    """`model:H100` → `Model H100`."""
    kind, _, value = name.partition(":")
    return "Whole fleet" if kind == EVERYTHING else f"{kind.capitalize()} {value or 'unknown'}"


def _idle(request: PageRequest) -> dict[str, object]:
    found = slice_of(series.idle_devices(), request.GET.get("page"), counted=True)
    rows = device_rows(found.rows, actor=request.actor)
    return {"slice": found, "rows": rows}
