"""CSV, of pages and of REST."""

from __future__ import annotations

import csv
from collections.abc import Iterable

from django.http import HttpResponse

CONTENT_TYPE = "text/csv; charset=utf-8"


def csv_response(rows: Iterable[Iterable[object]], file_name: str) -> HttpResponse:
    """A CSV file to save."""
    response = HttpResponse(
        content_type=CONTENT_TYPE, headers={"Content-Disposition": f'attachment; filename="{file_name}"'}
    )
    csv.writer(response).writerows(rows)
    return response
