"""`devices/<uuid>/history/` and `fleet/history/`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from nodes.history import figures
from nodes.history.rollups import MINUTE
from nodes.history.totals import Totals
from nodes.models import FleetRollup, Node, Rollup
from tests.factories import NodeFactory

pytestmark = pytest.mark.django_db
AT = datetime.fromisoformat("2026-06-01T12:00:00+00:00")


@pytest.fixture
def node() -> Node:
    """Three minutes of one GPU at midday, and one just now."""
    made = NodeFactory(name="n1", gpus=1)
    uuid = made.devices.get().uuid
    now = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    for percent, start in [(10 * minute, AT + timedelta(minutes=minute)) for minute in range(3)] + [(90, now)]:
        column = figures.Column((60,), (percent * 10,), (percent + 1,))
        body = figures.pack(figures.Figures((uuid,), {"utilisation_percent": column}))
        Rollup.objects.create(node=made, seconds=MINUTE, start=start, body=body)
        groups = {"all": Totals(gpus=1, measured=1, used=percent / 100), "model:H100": Totals(gpus=1)}
        FleetRollup.objects.create(seconds=MINUTE, start=start, groups=msgspec.to_builtins(groups))
    return made


def test_a_device(viewer: Any, node: Node) -> None:
    """VIEW-1 VIEW-5 the last hour by default, any other time by its ends; columns never measured are left out."""
    path = f"devices/{node.devices.get().uuid}/history/"
    status, last = viewer.get(path)
    assert (status, last["step"], last["means"]) == (200, 60, {"utilisation_percent": [90.0]})
    _, then = viewer.get(f"{path}?since=2026-06-01T12:01:00Z&until=2026-06-01T13:00:00Z")
    assert then["times"] == [int((AT + timedelta(minutes=minute)).timestamp()) for minute in (1, 2)]
    assert (then["means"]["utilisation_percent"], then["largest"]["utilisation_percent"]) == (
        [10.0, 20.0],
        [11.0, 21.0],
    )


def test_the_fleet(viewer: Any, node: Node) -> None:
    """VIEW-1 VIEW-5 totals by group; what nobody measured is null."""
    _, every = viewer.get("fleet/history/")
    assert (every["means"]["gpus"], every["means"]["used"]) == ([1.0], [0.9])
    _, model = viewer.get("fleet/history/?group=model:H100&range=24h")
    assert (model["means"]["gpus"], model["means"]["used"]) == ([1.0], [None])
    _, nobody = viewer.get("fleet/history/?group=model:none")
    assert (nobody["times"], nobody["means"]["gpus"]) == ([], [])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        pytest.param("range=1y", "range", id="no such range"),
        pytest.param("since=yesterday", "since", id="no time"),
        pytest.param("since=2026-06-02T00:00:00Z&until=2026-06-01T00:00:00Z", "since", id="backwards"),
        pytest.param("since=2025-06-02T00:00:00Z&until=2026-06-01T00:00:00Z", "since", id="too long"),
    ],
)
def test_times_that_are_none(viewer: Any, node: Node, query: str, field: str) -> None:
    """VIEW-5 a clear refusal that names the field."""
    for path in (f"devices/{node.devices.get().uuid}/history/", "fleet/history/"):
        status, problem = viewer.get(f"{path}?{query}")
        assert status == 400
        assert field in str(problem)


def test_unknown_names_are_404(viewer: Any) -> None:
    assert viewer.get("devices/GPU-none/history/")[0] == 404
