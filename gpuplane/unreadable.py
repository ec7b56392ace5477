"""Refuses requests whose address holds a NUL: no database takes one in a text, and nothing of ours has one in its name. So it does
what Django's admin takes for a defect of its own: an empty name of a field to refer by.

A middleware in front of every view. Kept true: no selector, filter or search is ever asked for a NUL that came by path or
query; bodies are read strictly elsewhere (`gpuplane.rest.codec`, Django's forms).
"""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.admin.options import TO_FIELD_VAR
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse

ADMIN = "/admin/"
NUL = "\x00"
ENCODED = "%00"


class UnreadableMiddleware:
    """400 for such an address."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Refuse or pass on."""
        query = request.META.get("QUERY_STRING", "")
        if NUL in request.path_info or ENCODED in query or NUL in query:
            raise SuspiciousOperation("the address holds a NUL character")
        if request.path_info.startswith(ADMIN) and request.GET.get(TO_FIELD_VAR) == "":
            raise SuspiciousOperation("the field to refer by has no name")
        return self._get_response(request)
