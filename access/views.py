"""Sign-in, sign-out and the theme."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from access import services
from access.attempts import too_many_failures
from access.models import Profile
from access.pages import PageRequest, page, protected

THEMES = ("", "light", "dark")


class SignIn(LoginView):
    """The sign-in page. Both outcomes are recorded; many failures in a row make the next attempts wait."""

    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True

    def render_to_response(self, context: dict[str, Any], **response_kwargs: Any) -> HttpResponse:
        """Like every page."""
        return protected(super().render_to_response(context, **response_kwargs))

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        """Check the pair, unless too many were wrong just now."""
        if too_many_failures(username=self._username(), address=self._address(), now=timezone.now()):
            form = self.get_form_class()(self.request)
            context = self.get_context_data(form=form, waiting=True, username=self._username())
            return self.render_to_response(context, status=429)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signed in."""
        services.signed_in(user=form.get_user(), now=timezone.now(), address=self._address())
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Not signed in."""
        if name := self._username():
            services.sign_in_failed(username=name, now=timezone.now(), address=self._address())
        return self.render_to_response(self.get_context_data(form=form, username=name), status=401)

    def _username(self) -> str:
        return services.name_shown(self.request.POST.get("username", ""))

    def _address(self) -> str:
        return str(self.request.META.get("REMOTE_ADDR", ""))[:64]


class SignOut(LogoutView):
    """Ends the session; POST only."""

    http_method_names = ["post"]


@require_POST
@page
def theme(request: PageRequest) -> HttpResponse:
    """Keep the account's theme. Answers a script with nothing, a form with the page it came from."""
    chosen = request.POST.get("theme", "")
    if chosen not in THEMES or not isinstance(request.user, User):
        return HttpResponse(status=400)
    Profile.objects.update_or_create(user=request.user, defaults={"theme": chosen})
    if request.headers.get("X-Requested-With") == "fetch":
        return HttpResponse(status=204)
    back = request.headers.get("Referer", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return redirect(back if safe else "fleet")
