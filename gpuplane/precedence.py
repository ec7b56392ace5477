"""Requests to Django give way to filter and bind: each query of theirs waits while one of those runs in this process.

Kept true: probes and metrics do not, they stand before this middleware.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection
from django.http import HttpRequest, HttpResponse

from access.precedence import gives_way


class PrecedenceMiddleware:
    """Django middleware; the view runs in the same thread, with the same connection."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer it."""
        with connection.execute_wrapper(gives_way):
            return self._get_response(request)
