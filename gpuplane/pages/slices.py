"""Pages of a list: which rows of a query are shown, and whether there are more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest

from gpuplane.pages.form_fields import whole_number

R = TypeVar("R")
S = TypeVar("S")
M = TypeVar("M", bound=Model)

PAGE_SIZE = 50
LAST_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Slice(Generic[R]):
    """One page of a list. `total` None: not counted."""

    rows: Sequence[R]
    number: int
    more: bool
    first: int
    total: int | None

    @property
    def last(self) -> int:
        """Position of the last row, from 1."""
        return self.first + len(self.rows) - 1

    def with_rows(self, rows: Sequence[S]) -> Slice[S]:
        """The same page with other rows."""
        return Slice(rows, self.number, self.more, self.first, self.total)


def slice_of(rows: QuerySet[M, Any], request: HttpRequest, *, counted: bool = False) -> Slice[M]:
    """The page of these rows that the query names (`?page=`, from 1; anything else is 1)."""
    number = min(LAST_PAGE, whole_number(request.GET.get("page", ""), most_digits=6) or 1)
    start = (number - 1) * PAGE_SIZE
    found = list(rows[start : start + PAGE_SIZE + 1])
    total = rows.count() if counted else None
    return Slice(rows=found[:PAGE_SIZE], number=number, more=len(found) > PAGE_SIZE, first=start + 1, total=total)
