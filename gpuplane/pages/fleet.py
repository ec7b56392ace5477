"""The fleet page, the holders that its heatmap shows, and the fleet as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

from django.contrib.auth.models import User
from django.http import HttpResponse, HttpResponseBadRequest
from django.shortcuts import render
from django.views.decorators.http import require_safe

from access.actors import Actor
from access.choices import Role
from access.first_steps import first_steps
from access.selectors import team_of_namespace
from agent.protocol import COLUMNS
from allocations.fleet_holders import ANSWERS, HolderKey
from allocations.overviews import DeviceRow, device_rows
from gpuplane.csv_files import csv_response
from gpuplane.fresh_samples import fresh_samples
from gpuplane.pages.page import PageRequest, page
from nodes.labels import pool_of
from nodes.live.samples import SampleView
from nodes.selectors import device_get, device_table

FIELDS: Final[Mapping[str, Callable[[DeviceRow], object]]] = {
    "node": lambda row: row.device.node.name,
    "pool": lambda row: pool_of(row.device.node.labels),
    "type": lambda row: row.device.type,
    "minor": lambda row: row.device.minor,
    "uuid": lambda row: row.device.uuid,
    "model": lambda row: row.device.model,
    "memory_bytes": lambda row: row.device.memory_bytes,
    "numa": lambda row: row.device.numa if row.device.numa >= 0 else "",
    "pcie": lambda row: row.device.pcie,
    "busid": lambda row: row.device.bus_id,
    "island": lambda row: row.device.island if row.device.island >= 0 else "",
    "state": lambda row: row.state,
    "health": lambda row: row.device.health_reason or ("" if row.device.healthy else "unhealthy"),
    "core_given_percent": lambda row: row.device.core_used,
    "memory_given_bytes": lambda row: row.device.memory_used,
    "holders": lambda row: " ".join(holding.holder for holding in row.holdings),
    "idle_since": lambda row: row.idle_since and row.idle_since.isoformat(),
}
"""Columns of the CSV before those of the sample; empty: unknown."""
AT_ONCE: Final = 5_000


@require_safe
@page
def fleet(request: PageRequest) -> HttpResponse:
    """The live heatmap; everything that moves comes over `WS /ws/fleet/`."""
    steps = first_steps(actor=request.actor) if request.actor.role == Role.ADMIN else None
    return render(request, "fleet/fleet.html", {"steps": steps})


@require_safe
@page
def device_card(request: PageRequest, device_id: int) -> HttpResponse:
    """Who holds one device, for the heatmap's card."""
    (row,) = device_rows([device_get(device_id)], actor=request.actor)
    return render(request, "fleet/card.html", {"row": row})


@require_safe
@page
def fleet_holders_part(request: PageRequest) -> HttpResponse:
    """Holders by `?by=team`, `namespace`, `pod` or `claim`: `{"names": {name: [device id, …]}, "others": […]}`."""
    try:
        by = HolderKey(request.GET.get("by", HolderKey.TEAM))
    except ValueError:
        return HttpResponseBadRequest(f"by must be one of {', '.join(HolderKey)}", content_type="text/plain")
    team_of = team_of_namespace(cast("User", request.user), request.actor) if by is HolderKey.TEAM else {}
    found = ANSWERS.of(actor=request.actor, by=by, team_of=team_of)
    return HttpResponse(found, content_type="application/json")


@require_safe
@page
def fleet_csv(request: PageRequest) -> HttpResponse:
    """One line a device, by node."""
    return csv_response(_lines(request.actor, fresh_samples()), "fleet.csv")


def _lines(actor: Actor, samples: Mapping[str, SampleView]) -> Iterator[list[object]]:
    yield [*FIELDS, *COLUMNS]
    devices = device_table()
    for start in range(0, len(devices), AT_ONCE):
        for row in device_rows(devices[start : start + AT_ONCE], actor=actor, samples=samples):
            yield [*(field(row) for field in FIELDS.values()), *map(row.measured.get, COLUMNS)]
