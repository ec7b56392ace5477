"""Sign-in, sign-out, one's own password and the theme.

Attempts at the old password are limited like sign-ins: somebody else may use an open session.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from access import services
from access.attempts import Attempt, attempt_of
from access.backends import AttemptRefused, counted, refusal_of
from access.errors import BadInput
from gpuplane.pages import provider_sign_in
from gpuplane.pages.form_fields import FormProblem, form_problem, fresh_password
from gpuplane.pages.page import PageRequest, page, protected
from storage.clock import database_now

THEMES = ("", "light", "dark")


class SignIn(LoginView):
    """Sign-in by name and password. Both outcomes are recorded; after many failures the next attempts wait."""

    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """With the other ways to sign in."""
        return super().get_context_data(**provider_sign_in.ways() | kwargs)

    def render_to_response(self, context: dict[str, Any], **response_kwargs: Any) -> HttpResponse:
        """Like every page."""
        return protected(super().render_to_response(context, **response_kwargs))

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signed in."""
        address = str(self.request.META.get("REMOTE_ADDR", ""))[:64]
        services.signed_in(user=form.get_user(), now=database_now(), address=address)
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Not signed in: a wrong pair, which `access.backends` has counted, or an attempt that has to wait."""
        refused = refusal_of(self.request)
        username = services.name_shown(self.request.POST.get("username", ""))
        context = self.get_context_data(form=form, username=username, refused=refused)
        if refused is None:
            return self.render_to_response(context, status=401)
        answer = self.render_to_response(context, status=503 if refused.busy else 429)
        answer["Retry-After"] = str(refused.wait_seconds)
        return answer


class SignOut(LogoutView):
    """Ends the session, and the provider's of somebody who came by one; POST only."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """The browser leaves for the provider by the page, since forms may be sent to this origin alone."""
        address = provider_sign_in.sign_out_address(request)
        answer = super().post(request, *args, **kwargs)
        if not address:
            return answer
        page = protected(render(request, "registration/signed_out.html", {"address": address}))
        page.headers["Refresh"] = f"0; url={address}"
        return page


@require_POST
@page
def theme(request: PageRequest) -> HttpResponse:
    """Keep the account's theme. Answers a script with nothing, a form with the page it came from."""
    chosen = request.POST.get("theme", "")
    if chosen not in THEMES or not isinstance(request.user, User):
        return HttpResponse(status=400)
    services.theme_set(user=request.user, theme=chosen)
    if request.headers.get("X-Requested-With") == "fetch":
        return HttpResponse(status=204)
    back = request.headers.get("Referer", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return redirect(back if safe else "fleet")


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@page
def own_password(request: PageRequest) -> HttpResponse:
    """The form. Other sessions of the account end with the old password."""
    if request.method != "POST":
        return _shown(request)
    assert isinstance(request.user, User)
    user = request.user
    attempt = attempt_of(request, user.get_username())
    try:
        _check_old(user, attempt, request.POST.get("old", ""))
        services.password_set(
            user=user, password=fresh_password(request), actor=request.actor, now=database_now(), old_checked=True
        )
    except AttemptRefused as error:
        problem = FormProblem("old", f"Try again in {error.wait_seconds} seconds.")
        answer = _shown(request, problem, status=503 if error.busy else 429)
        answer["Retry-After"] = str(error.wait_seconds)
        return answer
    except BadInput as error:
        return _shown(request, form_problem(error, otherwise="password"), status=400)
    user.refresh_from_db()
    update_session_auth_hash(request, user)
    messages.success(request, "Your password is set.")
    return redirect("own-password")


def _check_old(user: User, attempt: Attempt, password: str) -> None:
    with counted(attempt) as outcome:
        outcome.right = user.check_password(password)
    if not outcome.right:
        raise BadInput("this is not your password", field="old", rule="old")


def _shown(request: PageRequest, problem: FormProblem | None = None, *, status: int = 200) -> HttpResponse:
    return render(request, "accounts/password.html", {"problem": problem}, status=status)
