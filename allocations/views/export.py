"""The fleet as a table to keep: every device with what it is, who holds it as far as the user may see, and what it does now."""

from __future__ import annotations

import csv
import io
from typing import Final

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from access.pages import PageRequest, page
from agent.protocol import COLUMNS
from allocations.overviews import DeviceRow, device_rows
from nodes.labels import pool_of
from nodes.live.asked import latest_for
from nodes.models import Node
from nodes.selectors import device_list

FIELDS: Final = (
    "node", "pool", "type", "minor", "uuid", "model", "memory_bytes", "numa", "pcie", "busid", "island", "state", "health",
    "core_given_percent", "memory_given_bytes", "holders", "idle_since",
)  # fmt: skip
AT_ONCE: Final = 5_000
FORMULA: Final = frozenset("=+-@\t\r\n")
"""What a spreadsheet takes for the beginning of a formula."""


@require_GET
@page
def fleet_csv(request: PageRequest) -> HttpResponse:
    """One line a device, by node."""
    now = timezone.now().timestamp()
    samples = {name: sample for name, sample in latest_for(request).items() if not sample.is_old(now=now)}
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow((*FIELDS, *COLUMNS))
    nodes = {node.pk: node for node in Node.objects.all()}
    devices = list(device_list().select_related(None).order_by("node__name", "type", "minor"))
    for device in devices:
        device.node = nodes[device.node_id]  # one object a node: its labels are read once, not for each device
    for at in range(0, len(devices), AT_ONCE):
        for row in device_rows(devices[at : at + AT_ONCE], actor=request.actor, samples=samples):
            lines.writerow([_plain(cell) if isinstance(cell, str) else cell for cell in _line(row)])
    return HttpResponse(
        text.getvalue(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="fleet.csv"'},
    )


def _line(row: DeviceRow) -> list[object]:
    """As FIELDS and COLUMNS; empty: unknown."""
    device = row.device
    return [
        device.node.name,
        pool_of(device.node.labels),
        device.type,
        device.minor,
        device.uuid,
        device.model,
        device.memory_bytes,
        device.numa if device.numa >= 0 else "",
        device.pcie,
        device.bus_id,
        device.island if device.island >= 0 else "",
        row.state,
        device.health_reason or ("" if device.healthy else "unhealthy"),
        device.core_used,
        device.memory_used,
        " ".join(holding.holder for holding in row.holdings),
        "" if row.idle_since is None else row.idle_since.isoformat(),
        *("" if (value := row.measured.get(name)) is None else value for name in COLUMNS),
    ]


def _plain(text: str) -> str:
    """Text that somebody else wrote, so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in FORMULA else text
