"""Django's admin without a door of its own: signing in is the sign-in page's, an old password is counted like a sign-in.

Made by Django from the name in `access.admin_app`.
"""

from __future__ import annotations

from typing import Any, cast

from django.contrib.admin import AdminSite
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from typing_extensions import override

from access.password_page import OwnPassword


class Site(AdminSite):
    """The admin's pages."""

    @override
    @method_decorator(never_cache)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """To the sign-in page, and from there to `next`, if that is ours. Raises PermissionDenied for accounts without access."""
        asked = request.GET.get(REDIRECT_FIELD_NAME, "")
        ours = url_has_allowed_host_and_scheme(
            asked, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        index = reverse("admin:index", current_app=self.name)
        if self.has_permission(request):
            return HttpResponseRedirect(asked if ours else index)
        if request.user.is_authenticated:
            raise PermissionDenied("The admin is for staff accounts.")
        return redirect_to_login(asked if ours else index)

    @override
    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Django's page; what is typed as the old password is counted and limited."""
        url = reverse("admin:password_change_done", current_app=self.name)
        request.current_app = self.name
        context = {**self.each_context(request), **(extra_context or {})}
        return cast("TemplateResponse", OwnPassword.as_view(success_url=url, extra_context=context)(request))
