"""Sign-in, sign-out and the theme."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from access import services
from access.backends import refusal_of
from access.models import Profile
from access.pages import PageRequest, page, protected

THEMES = ("", "light", "dark")


class SignIn(LoginView):
    """The one page that checks a password to sign in. Both outcomes are recorded; many failures make the next attempts wait."""

    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True

    def render_to_response(self, context: dict[str, Any], **response_kwargs: Any) -> HttpResponse:
        """Like every page."""
        return protected(super().render_to_response(context, **response_kwargs))

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signed in."""
        services.signed_in(user=form.get_user(), now=timezone.now(), address=self._address())
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Not signed in: a wrong pair, which `access.backends` has counted and told, or one that has to wait."""
        refused = refusal_of(self.request)
        context = self.get_context_data(form=form, username=self._username(), refused=refused)
        if refused is None:
            return self.render_to_response(context, status=401)
        answer = self.render_to_response(context, status=503 if refused.busy else 429)
        answer["Retry-After"] = str(refused.wait_seconds)
        return answer

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
