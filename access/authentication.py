"""Who asks, for REST and pages: a bearer token or a session, turned into an `Actor` once a request.

Named in Django's settings for REST framework; pages call `request_actor` directly. Kept true: a
write by session needs the CSRF token (REST framework's own class sees to it), one by token does not.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from typing_extensions import override

from access.actors import Actor
from access.selectors import actor_of
from access.tokens import verify_user

SCHEME = "Bearer"


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`; `request.auth` is the Actor."""

    def authenticate(self, request: Request) -> tuple[User, Actor] | None:
        """The account and the actor; None without such a header. Raises AuthenticationFailed."""
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != SCHEME.lower().encode():
            return None
        if len(parts) != 2:
            raise AuthenticationFailed("write the header as Authorization: Bearer <token>")
        verified = verify_user(parts[1].decode("latin-1"))
        if verified is None:
            raise AuthenticationFailed("the token is not known, was revoked, or has ended")
        return verified.user, verified.actor

    @override
    def authenticate_header(self, request: Request) -> str:
        """The challenge of a 401."""
        return f'{SCHEME} realm="gpuplane"'


def request_actor(request: Request | HttpRequest) -> Actor:
    """The actor of a signed-in request, worked out once. Raises NotAllowed when nobody is signed in."""
    if isinstance(request, Request) and isinstance(request.auth, Actor):
        return request.auth
    inner = request._request if isinstance(request, Request) else request  # noqa: SLF001 - REST framework's own door
    known: Actor | None = getattr(inner, "gpuplane_actor", None)
    if known is None:
        known = actor_of(request.user)
        inner.gpuplane_actor = known  # type: ignore[attr-defined]  # kept for the rest of the request
    return known
