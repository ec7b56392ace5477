"""REST of history: what one device did, and how the fleet was used, over a range. Everybody who is signed in may ask.

Called by `gpuplane.rest.urls`. Kept true: a range of up to 25 hours is answered by minutes, a longer one by hours; nulls are unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from access.errors import BadInput, NotFound
from audit.clock import database_now
from nodes.api import checked
from nodes.history import series
from nodes.history.ranges import LONG, RANGES
from nodes.history.totals import EVERYTHING
from nodes.selectors import device_list

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
NAMES = list(LONG)


class RangeFilters(serializers.Serializer[Any]):
    """Which time: a range up to now, or from–until."""

    range = serializers.ChoiceField(choices=NAMES, required=False, default="1h")
    since = serializers.DateTimeField(required=False, help_text="with `until`, in place of `range`")
    until = serializers.DateTimeField(required=False)


class FleetRangeFilters(RangeFilters):
    """As above, of a group of the fleet."""

    group = serializers.CharField(
        required=False, default=EVERYTHING, max_length=200, help_text="`all`, `model:H100`, `pool:training`"
    )


class PointsSchema(serializers.Serializer[Any]):
    """Values at times. `times`: beginnings of steps, seconds since 1970."""

    step = serializers.IntegerField(help_text="seconds: 60 or 3600")
    times = serializers.ListField(child=serializers.IntegerField())
    means = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True)), help_text="column → a value a time"
    )


class DevicePointsSchema(PointsSchema):
    """With the largest value of each step."""

    largest = serializers.DictField(child=serializers.ListField(child=serializers.FloatField(allow_null=True)))


class DeviceHistory(APIView):
    """One device's past."""

    @extend_schema(
        summary="What a device did over a range",
        parameters=[RangeFilters, OpenApiParameter("uuid", str, OpenApiParameter.PATH, description="of the device")],
        responses=DevicePointsSchema,
    )
    def get(self, request: Request, uuid: str) -> Response:
        """Means and largest values of every column that was ever measured in it."""
        device = device_list().filter(uuid=uuid).first() if "\x00" not in uuid else None
        if device is None:
            raise NotFound(f"there is no device {uuid[:128]!r}")
        since, until = _times(checked(RangeFilters, request))
        found = series.device_series(device, since=since, until=until)
        known = [name for name, values in found.means.items() if any(value is not None for value in values)]
        return Response(
            {
                "step": found.step,
                "times": found.times,
                "means": {name: found.means[name] for name in known},
                "largest": {name: found.largest[name] for name in known},
            }
        )


class FleetHistory(APIView):
    """The fleet's past."""

    @extend_schema(
        summary="How the fleet was used over a range", parameters=[FleetRangeFilters], responses=PointsSchema
    )
    def get(self, request: Request) -> Response:
        """Totals of a group: GPUs there are, held, used, idle though held; memory; power."""
        filters = checked(FleetRangeFilters, request)
        since, until = _times(filters)
        found = series.fleet_series(group=filters["group"], since=since, until=until)
        return Response({"step": found.step, "times": found.times, "means": found.means})


def _times(filters: dict[str, Any]) -> tuple[datetime, datetime]:
    """(since, until). Raises BadInput."""
    now = database_now()
    since, until = filters.get("since"), filters.get("until") or now
    if until - EARLIEST < RANGES[NAMES[-1]]:
        raise BadInput("there is no history of that time", field="until", rule="range")
    if since is None:
        return until - RANGES[filters["range"]], until
    if since >= until:
        raise BadInput("since is not before until", field="since", rule="order")
    if until - since > series.LONGEST:
        raise BadInput(f"a range has at most {series.LONGEST.days} days", field="since", rule="longest")
    return since, until
