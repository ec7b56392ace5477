"""What every page shares: signed in or sent to sign in, the actor on the request, refusals as pages, slices of lists.

Used by the `views` of every room. Kept true: a page runs only for somebody who is signed in; what an
actor may not see is a 404, what they may not do a 403; a refresh by htmx never shows a sign-in page
inside another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import NotAllowed, NotFound
from access.models import Profile
from access.selectors import actor_of

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Model)

PAGE_SIZE = 50
LAST_PAGE = 10_000


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
        asked = cast("PageRequest", request)
        try:
            greet(asked)
            response = view(asked, *args, **kwargs)
        except NotFound as error:
            raise Http404(str(error)) from error
        except NotAllowed as error:
            raise PermissionDenied(str(error)) from error
        return protected(response)

    return cast("Callable[Concatenate[HttpRequest, P], HttpResponse]", guarded)


def protected(response: HttpResponse) -> HttpResponse:
    """The answer with what every page carries: kept in no cache."""
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def greet(request: PageRequest) -> None:
    """Put actor and theme on the request of a signed-in user. Raises NotAllowed for one who is switched off, and for machines."""
    request.actor = actor_of(request.user)
    request.actor.require_scope(TokenScope.REST)
    profile = Profile.objects.filter(user__pk=request.user.pk or 0).first()
    request.theme = "" if profile is None else profile.theme


def may_write(actor: Actor, namespace: str) -> bool:
    """Whether to show the buttons; the services enforce it."""
    return actor.role != Role.VIEWER and actor.sees(namespace)


def may_write_anywhere(actor: Actor) -> bool:
    """Whether there is any namespace in which the actor may write."""
    return actor.role != Role.VIEWER and (actor.namespaces is None or bool(actor.namespaces))


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


def slice_of(rows: QuerySet[M, Any], number: object, *, size: int = PAGE_SIZE, counted: bool = False) -> Slice[M]:
    """Page `number` (from 1; anything unreadable is 1) of a query."""
    at = page_number(number)
    start = (at - 1) * size
    found = list(rows[start : start + size + 1])
    total = rows.count() if counted else None
    return Slice(rows=found[:size], number=at, more=len(found) > size, first=start + 1, total=total)


def page_number(given: object) -> int:
    """The page asked for, from 1."""
    text = str(given or "")
    return min(LAST_PAGE, max(1, int(text))) if text.isascii() and text.isdecimal() and len(text) <= 6 else 1


def asked_word(request: HttpRequest, name: str, *, longest: int = 100) -> str:
    """A filter of the address, without what no database takes."""
    return request.GET.get(name, "").replace("\x00", "").strip()[:longest]


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request") == "true":
        return HttpResponse(status=204, headers={"HX-Redirect": resolve_url("sign-in") + _back_to_view(request)})
    return redirect_to_login(request.get_full_path())


def _back_to_view(request: HttpRequest) -> str:
    """`?next=…` of the page that htmx refreshes a part of: its path and query; empty where that is none of our pages."""
    shown = request.headers.get("HX-Current-URL", "")
    if not shown.startswith(("http://", "https://")):
        return ""
    if not url_has_allowed_host_and_scheme(shown, allowed_hosts={request.get_host()}):
        return ""
    parts = urlsplit(shown)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if not url_has_allowed_host_and_scheme(path, allowed_hosts=None):
        return ""
    return "?" + urlencode({"next": path}, safe="/")
