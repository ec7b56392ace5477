"""The clients of this process, one a provider of the settings: they cache what the providers say."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from access.errors import NotFound
from access.oidc.client import OidcClient


def client_of(provider_id: str) -> OidcClient:
    """The client of a provider. Raises NotFound."""
    for provider in settings.GPUPLANE_OIDC:
        if provider.id == provider_id:
            return _client(provider_id)
    raise NotFound(f"there is no provider {provider_id}")


@cache
def _client(provider_id: str) -> OidcClient:
    provider = next(provider for provider in settings.GPUPLANE_OIDC if provider.id == provider_id)
    return OidcClient(provider, secret=settings.GPUPLANE_OIDC_SECRETS.get(provider_id, ""))
