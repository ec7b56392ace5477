"""REST's first check: somebody is signed in, and by a token that opens this path. The rest is for selectors and services.

A path is for people and for machine accounts of scope `rest`. A view names in `machine_scope` which other scope opens one
of its actions (or methods); a token of any other scope is refused with a sentence that names the one needed.
Kept true: roles and namespaces are judged in one place, `access.actors.Actor`, which every service
asks; a permission class that repeated it could only disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from typing_extensions import override

from access.authentication import request_actor
from access.choices import TokenScope
from access.errors import NotAllowed

if TYPE_CHECKING:
    # REST framework's views import this module by the settings
    from rest_framework.views import APIView


class SignedIn(BasePermission):
    """Any role, and the scope of the path."""

    message = "sign in, or send a token"

    @override
    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether an active account asks. Raises NotAllowed for a token of another scope."""
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
