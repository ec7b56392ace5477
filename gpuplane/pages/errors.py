"""The pages for 400, 403, 404 and 500, in the style of the rest."""

from __future__ import annotations

from typing import cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from access.errors import NotAllowed
from access.pages import PageRequest, greet, protected

_WORDS = {
    400: ("This request cannot be read", "Something in the address or the form is not what the page expects."),
    403: ("You may not do this", "Your role or your teams do not allow it."),
    404: ("There is nothing here", "The object does not exist, or it belongs to a namespace that you do not see."),
}


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it by name
    """400."""
    return _answer(request, 400, "")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, with the rule in words where the service gave one."""
    return _answer(request, 403, str(exception))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404. Django's own text for an unknown address is not for people."""
    text = str(exception.args[0]) if exception.args and isinstance(exception.args[0], str) else ""
    return _answer(request, 404, text)


def broken(request: HttpRequest) -> HttpResponse:
    """500: leans on nothing that may be broken, the database least of all."""
    return render(request, "errors/500.html", status=500)


def _answer(request: HttpRequest, status: int, text: str) -> HttpResponse:
    if request.user.is_authenticated and not hasattr(request, "actor"):
        try:
            greet(cast("PageRequest", request))
        except NotAllowed:
            text = text or "This account is switched off."
    title, usual = _WORDS[status]
    context = {"status": status, "title": title, "text": text[:300] or usual}
    return protected(render(request, "errors/refused.html", context, status=status))
