"""Usage of the fleet over time, GPUs that are held but idle, and the usage of queues."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from allocations.overviews import device_rows
from allocations.queue_overviews import queue_tree
from allocations.queue_usage.reading import HEADINGS, UsageReport, usage_report
from gpuplane.csv_files import csv_response
from gpuplane.pages.page import PageRequest, page, query_word
from gpuplane.pages.slices import slice_of
from nodes.history import series
from nodes.history.ranges import LONG, RANGES, known_range
from nodes.history.totals import EVERYTHING
from storage.clock import database_now

QUEUE_RANGES = ("24h", "7d", "30d", "90d")


@require_safe
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


@require_safe
@page
def idle(request: PageRequest) -> HttpResponse:
    """The list of idle GPUs alone, for refreshes."""
    return render(request, "fleet/idle.html", _idle(request))


@require_safe
@page
def queues(request: PageRequest) -> HttpResponse:
    """What queues held, used, borrowed and lent; of one queue (`?queue=`) by namespace and model."""
    name, range_name, report = _report(request)
    tree = {row.name: row for row in queue_tree()}
    totals = report.by_queue()
    names = [*(known for known in tree if known in totals), *(gone for gone in totals if gone not in tree)]
    context = {
        "ranges": {range_: words for range_, words in LONG.items() if range_ in QUEUE_RANGES},
        "range": range_name,
        "queue": name,
        "report": report,
        "queues": [(totals[one], tree[one].depth if one in tree else 0) for one in names],
    }
    return render(request, "queues/usage.html", context)


@require_safe
@page
def queues_csv(request: PageRequest) -> HttpResponse:
    """The same as CSV, by namespace and model."""
    name, range_name, report = _report(request)
    file_name = f"queue-usage-{name or 'all'}-{range_name}.csv"
    return csv_response([HEADINGS, *(row.cells() for row in report.rows)], file_name)


def _report(request: PageRequest) -> tuple[str, str, UsageReport]:
    """(queue, range, report)."""
    name, range_name = query_word(request, "queue"), query_word(request, "range")
    range_name = range_name if range_name in QUEUE_RANGES else QUEUE_RANGES[0]
    now = database_now()
    return name, range_name, usage_report(since=now - RANGES[range_name], until=now, actor=request.actor, queue=name)


def group_words(name: str) -> str:
    """`model:H100` → `Model H100`."""
    kind, _, value = name.partition(":")
    return "Whole fleet" if kind == EVERYTHING else f"{kind.capitalize()} {value or 'unknown'}"


def _idle(request: PageRequest) -> dict[str, object]:
    found = slice_of(series.idle_devices(), request, counted=True)
    rows = device_rows(found.rows, actor=request.actor)
    return {"slice": found, "rows": rows}
