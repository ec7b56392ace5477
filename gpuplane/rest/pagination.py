"""Keyset pagination: each page starts after the last row of the one before.

A view states `ordering`, whose last field is unique. Invariants: rows that come or go between two pages shift nothing;
any page costs one query of `page_size` + 1 rows; a cursor that was not made here is a 400, never a fault.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.utils.dateparse import parse_datetime
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param
from rest_framework.views import APIView
from typing_extensions import override

from access.errors import BadInput

PAGE_SIZE = 100
PAGE_SIZE_MOST = 1_000
LONGEST_CURSOR = 2_000


class KeysetPagination(BasePagination):
    """`?page_size=` (default 100, at most 1,000) and `?cursor=`; answers `{"next", "previous", "results"}`."""

    def paginate_queryset(
        self, queryset: QuerySet[Any] | Sequence[Any], request: Request, view: APIView | None = None
    ) -> list[Any]:
        """The rows of the page; a list must be sorted by the view's only ordering field. Raises BadInput."""
        self._url = request.build_absolute_uri()
        self._fields = tuple(getattr(view, "ordering", ()))
        size = page_size(request.query_params.get("page_size"))
        cursor = request.query_params.get("cursor")
        model = queryset.model if isinstance(queryset, QuerySet) else None
        back, position = read_cursor(cursor, model, self._fields) if cursor else (False, None)
        if not isinstance(queryset, QuerySet):
            found = _listed(queryset, self._fields[0], position, back=back)[: size + 1]
        else:
            ordering = [_reverse(field) for field in self._fields] if back else list(self._fields)
            rows = queryset.order_by(*ordering)
            found = list((rows if position is None else rows.filter(_after(ordering, position)))[: size + 1])
        more, page = len(found) > size, found[:size]
        if back:
            page.reverse()
        self._next = self._link(page[-1], back=False) if page and (more or back) else None
        self._previous = self._link(page[0], back=True) if page and (more if back else position is not None) else None
        return page

    def get_paginated_response(self, data: Any) -> Response:
        """The page with the addresses of the next and the previous one."""
        return Response({"next": self._next, "previous": self._previous, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """OpenAPI of a page."""
        link = {"type": "string", "nullable": True, "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }

    @override
    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """OpenAPI of the parameters."""
        return [
            {
                "name": "page_size",
                "in": "query",
                "required": False,
                "description": "rows a page; more than the maximum gives the maximum",
                "schema": {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_MOST, "default": PAGE_SIZE},
            },
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "description": "as found in `next` and `previous`",
                "schema": {"type": "string", "maxLength": LONGEST_CURSOR},
            },
        ]

    def _link(self, row: Model, *, back: bool) -> str:
        values = [_value(row, field.lstrip("-")) for field in self._fields]
        token = base64.urlsafe_b64encode(orjson.dumps([int(back), *values], default=str)).decode().rstrip("=")
        return str(replace_query_param(remove_query_param(self._url, "cursor"), "cursor", token))


def page_size(text: str | None) -> int:
    """Rows a page. Raises BadInput."""
    if text is None or text == "":
        return PAGE_SIZE
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) < 1:
        raise BadInput("page_size must be a whole number from 1", field="page_size", rule="range")
    return min(int(text), PAGE_SIZE_MOST)


def read_cursor(cursor: str, model: type[Model] | None, fields: Sequence[str]) -> tuple[bool, list[Any]]:
    """(backwards, the position). Raises BadInput for any other text. `model` None: values are text."""
    wrong = BadInput("the cursor is not one that this list gave", field="cursor", rule="cursor")
    if len(cursor) > LONGEST_CURSOR:
        raise wrong
    try:
        decoded = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise wrong from error
    if not isinstance(decoded, list) or len(decoded) != len(fields) + 1 or decoded[0] not in (0, 1):
        raise wrong
    position: list[Any] = []
    for name, raw in zip(fields, decoded[1:], strict=True):
        if model is None:
            position.append(str(raw))
            continue
        field = _field(model, name.lstrip("-"))
        if not isinstance(raw, str | int) or isinstance(raw, bool):
            raise wrong
        kind = field.get_internal_type()
        if isinstance(raw, str) and ("\x00" in raw or "Integer" in kind or "Auto" in kind):
            raise wrong
        if isinstance(raw, int) and not (-(2**63) <= raw < 2**63):
            raise wrong
        try:
            value = _time(str(raw)) if kind == "DateTimeField" else field.to_python(raw)
        except (ValidationError, ValueError, OverflowError) as error:
            raise wrong from error
        if value is None:
            raise wrong
        position.append(value)
    return bool(decoded[0]), position


def _time(text: str) -> datetime | None:
    """The time in UTC, None for one without a zone. Raises ValueError, and OverflowError for one beyond all years."""
    time = parse_datetime(text)
    return None if time is None or time.tzinfo is None else time.astimezone(UTC)


def _field(model: type[Model], path: str) -> Any:
    *relations, last = path.split("__")
    for relation in relations:
        related = model._meta.get_field(relation).related_model  # noqa: SLF001 - Django's public model API
        assert isinstance(related, type)  # an ordering names relations to real models
        model = related
    return model._meta.get_field(last)  # noqa: SLF001 - Django's public model API


def _value(row: Any, path: str) -> Any:
    for part in path.split("__"):
        row = getattr(row, part)
    return row


def _listed(rows: Sequence[Any], field: str, position: Sequence[str] | None, *, back: bool) -> list[Any]:
    """The rows beyond the position, nearest first."""
    ordered = list(reversed(rows)) if back else list(rows)
    if position is None:
        return ordered
    start = position[0]
    return [row for row in ordered if (_value(row, field) < start if back else _value(row, field) > start)]


def _reverse(field: str) -> str:
    return field[1:] if field.startswith("-") else f"-{field}"


def _after(ordering: Sequence[str], position: Sequence[Any]) -> Q:
    """Rows that come after the position: first field beyond, or equal and the second beyond, …."""
    condition = Q()
    equal: dict[str, Any] = {}
    for field, value in zip(ordering, position, strict=True):
        name = field.lstrip("-")
        step = "lt" if field.startswith("-") else "gt"
        condition |= Q(**equal, **{f"{name}__{step}": value})
        equal[name] = value
    return condition
