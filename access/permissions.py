"""REST's first check: somebody is signed in. What they may see or write is checked by selectors and services.

Kept true: roles and namespaces are judged in one place, `access.actors.Actor`, which every service
asks; a permission class that repeated it could only disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from typing_extensions import override

if TYPE_CHECKING:
    # REST framework's views import this module by the settings
    from rest_framework.views import APIView


class SignedIn(BasePermission):
    """Any role."""

    message = "sign in, or send a token"

    @override
    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether an active account asks."""
        return bool(request.user and request.user.is_authenticated and request.user.is_active)
