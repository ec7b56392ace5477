"""One's own password, set anew in the admin: the old one is counted like a sign-in, the change is told.

Called by `access.admin_site`.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.forms import AdminPasswordChangeForm
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from typing_extensions import override

from access import services
from access.addresses import address_counted
from access.attempts import Attempt
from access.backends import AttemptRefused, counted
from access.selectors import actor_of
from audit.clock import database_now


class OwnPasswordForm(AdminPasswordChangeForm):
    """Old password, new password twice."""

    def __init__(self, *args: Any, address: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address = address

    @override
    def clean_old_password(self) -> str:
        """Within the limits of `access.attempts`."""
        attempt = Attempt(services.name_counted(self.user.get_username()), self._address)
        try:
            with counted(attempt) as outcome:
                outcome.right = self.user.check_password(self.cleaned_data["old_password"])
        except AttemptRefused as error:
            raise ValidationError(f"Try again in {error.wait_seconds} seconds.", code="waits") from error
        if not outcome.right:
            raise ValidationError(self.error_messages["password_incorrect"], code="password_incorrect")
        return str(self.cleaned_data["old_password"])


class OwnPassword(PasswordChangeView):
    """The page."""

    form_class = OwnPasswordForm

    @override
    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "address": address_counted(self.request)}

    @override
    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        """Set and told."""
        answer = super().form_valid(form)
        assert isinstance(self.request.user, User)
        services.password_changed(user=self.request.user, actor=actor_of(self.request.user), now=database_now())
        return answer
