"""Accounts of Kubernetes ServiceAccounts that call REST with their own tokens.

Called by `gpuplane.rest.service_accounts` after the API server has said whose a token is. Invariants: a ServiceAccount
is in the teams that own its namespace, and has no account where there is none; its role is the one that the settings
give; an account that an admin has shut stays shut.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256

from django.contrib.auth.models import User

from access import services
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import Conflict
from access.models import Team
from access.selectors import profile_of, scope_of
from storage.transactions import atomic_retry

PREFIX = "serviceaccount@"
LONGEST = 150
"""Of an account's name."""


def service_account_name(namespace: str, name: str) -> str:
    """The account's name; of a long one the digest. Namespaces have no dot, so no two are alike."""
    whole = f"{PREFIX}{namespace}.{name}"
    return whole if len(whole) <= LONGEST else f"{PREFIX}{sha256(whole.encode()).hexdigest()}"


def service_account_user(*, namespace: str, name: str, role: Role, now: datetime) -> User | None:
    """The machine account of a ServiceAccount, with role and teams as of now; created where there is none.

    None where no team owns the namespace, and for an account that is shut or somebody else's.
    """
    try:
        return _user(namespace=namespace, name=name, role=role, now=now)
    except Conflict:  # another request created it at this moment, or deleted a team
        return _user(namespace=namespace, name=name, role=role, now=now)


@atomic_retry
def _user(*, namespace: str, name: str, role: Role, now: datetime) -> User | None:
    teams = list(Team.objects.filter(namespaces__namespace=namespace))
    if not teams:
        return None
    username = service_account_name(namespace, name)
    user = User.objects.filter(username=username).select_related("profile").first()
    if user is None:
        return services.user_create(
            username=username, password=None, role=role, actor=SYSTEM, now=now, service=True, teams=teams
        )
    profile = profile_of(user)
    if not user.is_active or not profile.service or scope_of(profile) != TokenScope.REST:
        return None
    services.role_set(user=user, role=role, actor=SYSTEM, now=now)
    services.user_teams_set(user=user, teams=teams, actor=SYSTEM, now=now)
    return user
