"""The account of a person who came by a provider: found by issuer and subject, else created.

Called by the callback's page after `client` has checked the ID token. Invariants: an account of the same name that
did not come by this issuer and subject is never opened, nor one that an admin has shut or made a machine's; role and
teams are what the groups give, at each sign-in; each change leaves its audit event.
"""

from __future__ import annotations

from datetime import datetime

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from access import services
from access.actors import SYSTEM
from access.choices import Role
from access.errors import BadInput, Conflict
from access.models import ExternalIdentity, Team
from access.oidc.client import Identity
from access.oidc.errors import SignInRefused
from access.oidc.providers import Provider
from access.selectors import profile_of
from storage.transactions import atomic_retry

log = structlog.get_logger(__name__)


def identity_account(*, provider: Provider, identity: Identity, now: datetime) -> User:
    """The account, with role and teams as of now. Raises SignInRefused."""
    given = provider.role_of(identity.groups)
    if given is None:
        raise SignInRefused("none of your groups may use gpuplane; ask an admin for one that may", rule="no_role")
    role = Role(given)
    try:
        return _account(identity=identity, role=role, teams=_teams(provider, identity), now=now)
    except Conflict:  # the same person's other request may have created it at this moment, or a team was deleted
        try:
            return _account(identity=identity, role=role, teams=_teams(provider, identity), now=now)
        except Conflict as error:
            raise SignInRefused(
                f"there is already an account {identity.username} of another way of sign-in; an admin can delete it",
                rule="name_taken",
            ) from error


@atomic_retry
def _account(*, identity: Identity, role: Role, teams: list[Team], now: datetime) -> User:
    known = ExternalIdentity.objects.filter(issuer=identity.issuer, subject=identity.subject)
    link = known.select_related("user__profile").first()
    if link is None:
        return _created(identity=identity, role=role, teams=teams, now=now)
    user: User = link.user
    if not user.is_active:
        raise SignInRefused(f"the account {user.get_username()} is shut; an admin can open it", rule="shut")
    if profile_of(user).service:
        raise SignInRefused(f"the account {user.get_username()} is a machine's and has tokens alone", rule="machine")
    services.role_set(user=user, role=role, actor=SYSTEM, now=now)
    services.user_teams_set(user=user, teams=teams, actor=SYSTEM, now=now)
    return user


def _created(*, identity: Identity, role: Role, teams: list[Team], now: datetime) -> User:
    name = User.normalize_username(identity.username)
    if name == settings.GPUPLANE_BREAK_GLASS_ACCOUNT:
        raise SignInRefused(f"the account {name} signs in by password alone", rule="name")
    try:
        user = services.user_create(username=name, password=None, role=role, actor=SYSTEM, now=now, teams=teams)
    except BadInput as error:
        raise SignInRefused(
            f"no account can have the name {services.name_shown(name)}: {error}", rule="name"
        ) from error
    try:
        with transaction.atomic():
            ExternalIdentity.objects.create(user=user, issuer=identity.issuer, subject=identity.subject, since=now)
    except IntegrityError as error:
        raise Conflict("this person's account was created at this moment") from error
    return user


def _teams(provider: Provider, identity: Identity) -> list[Team]:
    """The teams that the groups give; those that are not there are left out, and logged."""
    names = provider.teams_of(identity.groups)
    found = list(Team.objects.filter(name__in=names))
    if missing := sorted(set(names) - {team.name for team in found}):
        log.warning("oidc.no_such_team", provider=provider.id, teams=missing)
    return found
