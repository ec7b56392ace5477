"""Django's admin, read-only. Sign-in and passwords are pages of `gpuplane.pages`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib.admin import AdminSite
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from typing_extensions import override

View = TypeVar("View", bound=Callable[..., Any])
SAFE = ("GET", "HEAD", "OPTIONS")


class Site(AdminSite):
    """The admin's pages."""

    @override
    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """Refuse methods that write, but for signing out."""
        if view == self.logout:
            return super().admin_view(view, cacheable)

        @wraps(view)
        def read(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if request.method not in SAFE:
                return HttpResponseNotAllowed(SAFE)
            return view(request, *args, **kwargs)

        return super().admin_view(cast("View", read), cacheable)

    @override
    @method_decorator(never_cache)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the sign-in page, and from there to `next`. Raises PermissionDenied for other than staff."""
        target = request.GET.get(REDIRECT_FIELD_NAME, "")
        if not url_has_allowed_host_and_scheme(
            target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        ):
            target = reverse("admin:index", current_app=self.name)
        if self.has_permission(request):
            return HttpResponseRedirect(target)
        if request.user.is_authenticated:
            raise PermissionDenied("The admin is for staff accounts.")
        return redirect_to_login(target)

    @override
    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Redirect to the page that sets one's own password."""
        return redirect("own-password")

    password_change_done = password_change
