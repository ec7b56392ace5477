"""REST of history: of one device and of the fleet. It names no holders, so every signed-in user may read it.

Invariants: a range of up to 25 hours has a value a minute, a longer one a value an hour; null is unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from access.errors import BadInput
from gpuplane.rest.fields import checked
from nodes.history import series
from nodes.history.ranges import LONG, RANGES
from nodes.history.totals import EVERYTHING
from nodes.selectors import device_of
from storage.clock import database_now

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
        device = device_of(uuid)
        since, until = _times(checked(RangeFilters, request.query_params))
        found = series.device_series(device, since=since, until=until)
        measured = [name for name, values in found.means.items() if any(value is not None for value in values)]
        return Response(
            {
                "step": found.step,
                "times": found.times,
                "means": {name: found.means[name] for name in measured},
                "largest": {name: found.largest[name] for name in measured},
            }
        )


class FleetHistory(APIView):
    """The fleet's past."""

    @extend_schema(
        summary="How the fleet was used over a range", parameters=[FleetRangeFilters], responses=PointsSchema
    )
    def get(self, request: Request) -> Response:
        """Totals of a group: GPUs in all, held, used, idle though held; memory; power."""
        filters = checked(FleetRangeFilters, request.query_params)
        since, until = _times(filters)
        found = series.fleet_series(group=filters["group"], since=since, until=until)
        return Response({"step": found.step, "times": found.times, "means": found.means})


def _times(filters: dict[str, Any]) -> tuple[datetime, datetime]:
    return times(filters.get("since"), filters.get("until"), usual=RANGES[filters["range"]])


def times(
    since: datetime | None, until: datetime | None, *, usual: timedelta, names: tuple[str, str] = ("since", "until")
) -> tuple[datetime, datetime]:
    """(since, until); until now, and for as long as usual, unless given. `names`: of both fields. Raises BadInput."""
    begin, end = names
    now = database_now()
    until = min(until or now, now + timedelta(days=1))
    if until - EARLIEST < RANGES[NAMES[-1]]:
        raise BadInput("there is no history of that time", field=end, rule="range")
    if since is None:
        return until - usual, until
    if since >= until:
        raise BadInput(f"{begin} is not before {end}", field=begin, rule="order")
    if until - since > series.LONGEST:
        raise BadInput(f"a range has at most {series.LONGEST.days} days", field=begin, rule="longest")
    return since, until
