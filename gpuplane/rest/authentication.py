"""Authentication and permissions of REST: a bearer token or a session, turned into an `Actor` once a request.

Views accept people and machine accounts of scope `rest`; `machine_scope` of a view names another scope for one of its
actions (or methods). Services and selectors alone check roles and namespaces. Invariants: a write by session needs the
CSRF token, which REST framework's own class checks; one by token does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from typing_extensions import override

from access.actors import Actor
from access.authorization import bearer_token
from access.choices import TokenScope
from access.errors import NotAllowed
from access.selectors import actor_of
from gpuplane.rest.service_accounts import verify_bearer

if TYPE_CHECKING:
    # REST framework's views import this module by the settings
    from rest_framework.views import APIView

SCHEME = "Bearer"


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`, an API token or a ServiceAccount's; `request.auth` is the Actor."""

    def authenticate(self, request: Request) -> tuple[User, Actor] | None:
        """The account and the actor; None without such a header. Raises AuthenticationFailed."""
        token = bearer_token(get_authorization_header(request))
        if token is None:
            return None
        if not token or b" " in token:
            raise AuthenticationFailed("write the header as Authorization: Bearer <token>")
        verified = verify_bearer(token.decode("latin-1"), address=str(request.META.get("REMOTE_ADDR", "")))
        if verified is None:
            raise AuthenticationFailed("the token is not known, was revoked, or has ended")
        return verified.user, verified.actor

    @override
    def authenticate_header(self, request: Request) -> str:
        """The challenge of a 401."""
        return f'{SCHEME} realm="gpuplane"'


def request_actor(request: Request) -> Actor:
    """The actor of the request, found once. Raises NotAllowed when nobody is signed in."""
    if isinstance(request.auth, Actor):
        return request.auth
    inner = request._request  # noqa: SLF001 - Django's request
    actor: Actor | None = getattr(inner, "gpuplane_actor", None)
    if actor is None:
        actor = actor_of(request.user)
        inner.gpuplane_actor = actor  # type: ignore[attr-defined]  # kept for the rest of the request
    return actor


class SignedIn(BasePermission):
    """Any role, and the scope of the path."""

    message = "sign in, or send a token"

    @override
    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether an active account is signed in. Raises NotAllowed for a token of another scope."""
        if not (request.user and request.user.is_authenticated and request.user.is_active):
            return False
        actor = request_actor(request)
        if actor.scope == TokenScope.REST:
            return True
        scopes: Mapping[str, TokenScope] = getattr(view, "machine_scope", {})
        method = "get" if request.method == "HEAD" else (request.method or "").lower()
        needed = scopes.get(getattr(view, "action", None) or method, TokenScope.REST)
        if actor.scope != needed:
            raise NotAllowed(actor.refusal(needed))
        return True
