"""Responses to errors that no view handles: an HTML page, or a problem document under `/api/`.

Django calls them by `gpuplane.urls.handler400` and the like, also for requests that never reached a view and may lack a
user. Invariants: an error that `gpuplane.problems` knows is no 500 and names its cause.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import cast

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from access.errors import NotAllowed
from gpuplane.pages.page import PageRequest, protected, set_actor
from gpuplane.problems import FAULT, Problem, problem_of, problem_response

API = "/api/"
_WORDS = {
    400: ("This request cannot be read", "Something in the address or the form is not what the page expects."),
    403: ("You may not do this", "Your role or your teams do not allow it."),
    404: ("There is nothing here", "The object does not exist, or it belongs to a namespace that you do not see."),
    409: ("This cannot be done now", "The object has changed meanwhile."),
    413: ("This is too large", "The form holds more than is accepted."),
    503: ("This is not possible at the moment", "A part that this needs is down or busy. Try again in a moment."),
    507: (
        "There is no space left",
        "Nothing can be changed until an administrator makes room. Running work keeps its devices.",
    ),
}


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400."""
    text = "gpuplane does not answer to that host name." if isinstance(exception, DisallowedHost) else ""
    return _answer(request, 400, text)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, with the service's message if it has one."""
    return _answer(request, 403, str(exception))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404, with the service's message; Django's own for an unknown address is not for users."""
    text = str(exception.args[0]) if exception.args and isinstance(exception.args[0], str) else ""
    return _answer(request, 404, text)


def broken(request: HttpRequest) -> HttpResponse:
    """The error's problem, such as a full or busy database, else 500; rendered without the database."""
    error = sys.exc_info()[1]
    problem = (None if error is None else problem_of(error)) or FAULT
    if request.path.startswith(API):
        return problem_response(problem)
    if problem is FAULT:
        return render(request, "errors/500.html", status=500)
    usual = HTTPStatus(problem.status).phrase, problem.detail
    title, text = _WORDS.get(problem.status, usual)
    if problem.status < 500:
        text = problem.detail
    context = {"status": problem.status, "title": title, "text": text[:300]}
    response = protected(render(request, "errors/500.html", context, status=problem.status))
    for name, value in problem.headers.items():
        response[name] = value
    return response


def _answer(request: HttpRequest, status: int, text: str) -> HttpResponse:
    title, usual = _WORDS[status]
    if request.path.startswith(API):
        return problem_response(Problem(status=status, detail=text[:300] or usual))
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated and not hasattr(request, "actor"):
        try:
            set_actor(cast("PageRequest", request))
        except NotAllowed:
            text = text or "This account is switched off."
    context = {"status": status, "title": title, "text": text[:300] or usual}
    return protected(render(request, "errors/refused.html", context, status=status))
