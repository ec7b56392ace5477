"""What every page shares: the sign-in check, the actor on the request, error types as HTTP statuses, queries, CSV.

Invariants: a view runs only for a signed-in user; what an actor may not see is a 404, what they may not do a 403; a
refresh by htmx never shows a sign-in page inside another page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast
from urllib.parse import urlencode, urlsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import NotAllowed, NotFound
from access.selectors import actor_of, theme_of
from gpuplane.pages.form_fields import LONGEST

P = ParamSpec("P")


class PageRequest(HttpRequest):
    """A request of somebody signed in, as `page` hands it to a view."""

    actor: Actor
    theme: str
    htmx: HtmxDetails


def page(
    view: Callable[Concatenate[PageRequest, P], HttpResponse],
) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Make a view a page: it gets a PageRequest, and may raise NotFound and NotAllowed."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return _sign_in_first(request)
        page_request = cast("PageRequest", request)
        try:
            set_actor(page_request)
            response = view(page_request, *args, **kwargs)
        except NotFound as error:
            raise Http404(str(error)) from error
        except NotAllowed as error:
            raise PermissionDenied(str(error)) from error
        return protected(response)

    return cast("Callable[Concatenate[HttpRequest, P], HttpResponse]", guarded)


def protected(response: HttpResponse) -> HttpResponse:
    """The response, not to be cached."""
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def set_actor(request: PageRequest) -> None:
    """Set actor and theme on a signed-in user's request. Raises NotAllowed for inactive accounts and machines."""
    request.actor = actor_of(request.user)
    request.actor.require_scope(TokenScope.REST)
    request.theme = theme_of(request.user)


def may_write(actor: Actor, namespace: str) -> bool:
    """Whether to show the buttons; the services enforce it."""
    return actor.role != Role.VIEWER and actor.sees(namespace)


def may_write_anywhere(actor: Actor) -> bool:
    """Whether the actor may write in any namespace."""
    return actor.role != Role.VIEWER and (actor.namespaces is None or bool(actor.namespaces))


def query_word(request: HttpRequest, name: str, *, longest: int = LONGEST) -> str:
    """A parameter of the query, without NUL, which no database takes."""
    return request.GET.get(name, "").replace("\x00", "").strip()[:longest]


def query_words(request: HttpRequest, *same: str, **names: str) -> dict[str, str]:
    """Parameters of the query by their own names (`same`), or by others: `search="q"`."""
    names |= {name: name for name in same}
    return {name: query_word(request, parameter) for name, parameter in names.items()}


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request") == "true":
        back = _back_to_view(request, request.headers.get("HX-Current-URL", ""))
        return HttpResponse(status=204, headers={"HX-Redirect": resolve_url("sign-in") + back})
    if request.method not in ("GET", "HEAD"):  # the address of a form may show nothing: back to the page that has it
        return redirect(resolve_url("sign-in") + _back_to_view(request, request.headers.get("Referer", "")))
    return redirect_to_login(request.get_full_path())


def _back_to_view(request: HttpRequest, shown: str) -> str:
    """`?next=` with the path and query of the page that was shown; empty for another site's."""
    if not shown.startswith(("http://", "https://")):
        return ""
    if not url_has_allowed_host_and_scheme(shown, allowed_hosts={request.get_host()}):
        return ""
    parts = urlsplit(shown)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if not url_has_allowed_host_and_scheme(path, allowed_hosts=None):
        return ""
    return "?" + urlencode({"next": path}, safe="/")
