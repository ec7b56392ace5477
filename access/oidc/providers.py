"""What GPUPLANE_OIDC describes: the providers, and what their groups mean here.

Read by the settings, so nothing of Django is imported. Field names in JSON are in camelCase: `clientId`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

RoleName = Literal["viewer", "operator", "admin"]
HIGHEST_FIRST: Final[tuple[RoleName, ...]] = ("admin", "operator", "viewer")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_Text = Annotated[str, Meta(min_length=1, max_length=1024)]
_Groups = tuple[_Text, ...]


class Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One provider.

    `id` is part of the callback's address. `roles` and `teams`: role or team → groups that give it; the highest role
    counts. `default_role`: of people whom no group gives one; `none` refuses them. `session_hours`: how long a sign-in
    lasts. `ca`: a file with the CA of the provider's certificate. `sign_out`: end the session at the provider too.
    """

    id: Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z")]
    issuer: _Text
    client_id: _Text
    name: Annotated[str, Meta(max_length=60)] = ""
    scopes: tuple[_Text, ...] = ("openid", "profile", "email")
    username_claim: _Text = "preferred_username"
    username_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9@.+_-]{0,32}\Z")] = ""
    groups_claim: _Text = "groups"
    roles: Mapping[RoleName, _Groups] = {}
    default_role: Literal["none", "viewer", "operator"] = "viewer"
    teams: Mapping[_Text, _Groups] = {}
    session_hours: Annotated[int, Meta(ge=1, le=24 * 30)] = 12
    ca: str = ""
    sign_out: bool = True

    @property
    def label(self) -> str:
        """What the button says."""
        return self.name or self.id

    def role_of(self, groups: Iterable[str]) -> RoleName | None:
        """The highest role that the groups give, else the default; None refuses the person."""
        given = frozenset(groups)
        for role in HIGHEST_FIRST:
            if given & frozenset(self.roles.get(role, ())):
                return role
        return None if self.default_role == "none" else self.default_role

    def teams_of(self, groups: Iterable[str]) -> list[str]:
        """Names of the teams that the groups give, sorted."""
        given = frozenset(groups)
        return sorted(team for team, of_team in self.teams.items() if given & frozenset(of_team))


_PROVIDERS: Final = msgspec.json.Decoder(tuple[Provider, ...])
_SECRETS: Final = msgspec.json.Decoder(dict[str, Annotated[str, Meta(min_length=1, max_length=4096)]])


def parse_providers(text: str) -> tuple[Provider, ...]:
    """The providers of a JSON list; none for an empty text. Raises ValueError with the rule that is broken."""
    if not text.strip():
        return ()
    try:
        found = _PROVIDERS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"give a JSON list of providers: {error}") from error
    ids = [provider.id for provider in found]
    if len(set(ids)) < len(ids):
        raise ValueError("two providers have the same id")
    if len({provider.issuer for provider in found}) < len(found):
        raise ValueError("two providers have the same issuer, which names the same people")
    for provider in found:
        _check_address(provider)
        if "openid" not in provider.scopes:
            raise ValueError(f"scopes of {provider.id} lack openid")
        if provider.ca and not Path(provider.ca).is_file():
            raise ValueError(f"ca of {provider.id}: there is no file {provider.ca}")
    return found


def parse_secrets(text: str) -> dict[str, str]:
    """Provider's id → client secret, of a JSON object. Raises ValueError, which names no secret."""
    if not text.strip():
        return {}
    try:
        return _SECRETS.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError('give a JSON object, provider\'s id to client secret: {"corp": "…"}') from error


def is_safe_address(url: str) -> bool:
    """Whether tokens may be sent there: HTTPS, or this machine."""
    if not (url.isascii() and url.isprintable()):
        return False
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a number that is none
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))


def _check_address(provider: Provider) -> None:
    if not is_safe_address(provider.issuer) or urlsplit(provider.issuer).query or urlsplit(provider.issuer).fragment:
        raise ValueError(f"issuer of {provider.id}: give an https:// address without ? and #")
