"""A provider that can be bent, gpuplane that knows it, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from access.oidc import clients
from gpuplane.listeners.rate_limits import AddressRateLimit
from gpuplane.pages import provider_sign_in
from tests.fakes.oidc import FakeProvider
from tests.integration.provider_sign_in.browser import Browser, configure


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider().serving() as made:
        yield made


@pytest.fixture(autouse=True)
def refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of other tests."""
    limit = AddressRateLimit(provider_sign_in.REFUSED_CODES, provider_sign_in.ALL_REFUSED_CODES)
    monkeypatch.setattr(provider_sign_in, "_refusals", limit)


@pytest.fixture
def configured(provider: FakeProvider, settings: Settings) -> Iterator[Settings]:
    """gpuplane knows the provider."""
    configure(settings, provider)
    yield settings
    clients._client.cache_clear()


@pytest.fixture
def browser(provider: FakeProvider, configured: Settings) -> Browser:
    made = Browser()
    made.provider = provider
    return made
