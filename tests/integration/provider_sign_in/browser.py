"""A person who signs in at a provider, for the tests beside it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from access.oidc import clients
from access.oidc.providers import Provider
from tests.fakes.oidc import CLIENT, SECRET, FakeProvider

BEGIN = "/sign-in/with/corp/"
BACK = "/sign-in/with/corp/callback/"


class Browser(Client):
    """Somebody who signs in at the provider."""

    provider: FakeProvider

    def begin(self, **query: str) -> str:
        """The address at the provider."""
        answer = self.get(BEGIN, query)
        assert answer.status_code == 302, answer.content.decode()
        return str(answer["Location"])

    def come_back(self, query: dict[str, str]) -> Any:
        """The page after it."""
        return self.get(BACK, query)

    def sign_in(self, **claims: Any) -> Any:
        """The whole way."""
        return self.come_back(self.provider.returned(self.begin(), **claims))

    @property
    def user(self) -> User | None:
        """Who is signed in."""
        key = self.session.get("_auth_user_id")
        return None if key is None else User.objects.get(pk=key)


def configure(settings: Settings, provider: FakeProvider, **more: Any) -> None:
    fields: dict[str, Any] = {
        "name": "Corp",
        "roles": {"admin": ("root",), "operator": ("dev",)},
        "teams": {"red": ("r", "rr"), "blue": ("b",), "gone": ("r",)},
    } | more
    settings.GPUPLANE_OIDC = (Provider(id="corp", issuer=provider.issuer, client_id=CLIENT, **fields),)
    settings.GPUPLANE_OIDC_SECRETS = {"corp": SECRET}
    clients._client.cache_clear()


def refusal(answer: Any, *, status: int) -> str:
    """What the page of sign-in says."""
    assert answer.status_code == status
    return str(answer.context["why"])
