"""CSV, of pages and of REST.

Invariants: no text in it is a formula to a spreadsheet.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Final

from django.http import HttpResponse

CONTENT_TYPE = "text/csv; charset=utf-8"
FORMULA: Final = frozenset("=+-@\t\r\n")
"""Characters that begin a formula in a spreadsheet."""


def csv_response(rows: Iterable[Iterable[object]], file_name: str) -> HttpResponse:
    """A CSV file to save."""
    response = HttpResponse(
        content_type=CONTENT_TYPE, headers={"Content-Disposition": f'attachment; filename="{file_name}"'}
    )
    csv.writer(response).writerows([_plain(cell) for cell in row] for row in rows)
    return response


def _plain(cell: object) -> object:
    """The cell; text so that no spreadsheet takes it for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA else cell
