"""Reads of who may do what.

Called once at each edge (REST authentication, pages, the cluster's doors) to turn a user into the
`Actor` that services take. Kept true: an account that is inactive is nobody.
"""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import QuerySet
from knox.models import AuthToken

from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import NotAllowed, NotFound
from access.models import Profile, Team, TeamNamespace


def actor_of(user: AbstractBaseUser | AnonymousUser) -> Actor:
    """The actor a signed-in user is: at most two queries. Raises NotAllowed for anonymous or inactive users.

    Admins see every namespace, and so do scrapers, since metrics name pods; machine accounts of scope `rest` and people
    those of their teams, every other machine none. A superuser is an admin. Whatever its role, a machine account whose
    scope is not `rest` is a viewer.
    """
    if not isinstance(user, User) or not user.is_active:
        raise NotAllowed("sign in first")
    try:
        profile = user.profile
    except Profile.DoesNotExist:
        profile = Profile(user=user)
    scope = scope_of(profile)
    role = Role.ADMIN if user.is_superuser else Role(profile.role)
    namespaces: frozenset[str] | None = frozenset()
    if scope != TokenScope.REST:
        role = Role.VIEWER
        namespaces = None if scope == TokenScope.METRICS else frozenset()
    elif role == Role.ADMIN:
        namespaces = None
    else:
        namespaces = namespaces_of(user)
    return Actor(
        name=user.get_username(),
        role=role,
        namespaces=namespaces,
        service=profile.service,
        node=profile.node,
        scope=scope,
    )


def scope_of(profile: Profile) -> TokenScope:
    """What the account's tokens open. A node alone says so too: an account that a version before this one makes during an upgrade has no scope."""
    return TokenScope.AGENT if profile.node else TokenScope(profile.scope)


def namespaces_of(user: User) -> frozenset[str]:
    """Namespaces of the user's teams."""
    return frozenset(TeamNamespace.objects.filter(team__members=user).values_list("namespace", flat=True))


def team_of_namespace(user: User, actor: Actor) -> dict[str, str]:
    """Namespace → the team that owns it, first by name where several do, as far as this user may know: their own teams, or all for who sees all."""
    teams = Team.objects.all() if actor.namespaces is None else Team.objects.filter(members=user)
    owned = teams.order_by("-name").values_list("namespaces__namespace", "name")
    return {namespace: name for namespace, name in owned if namespace is not None}


def token_list(*, actor: Actor, account: str = "") -> QuerySet[AuthToken]:
    """Tokens that the actor may see, with account, scope and use: their own; of everybody for admins."""
    rows: QuerySet[AuthToken] = AuthToken.objects.select_related("user__profile", "use").order_by("-created", "pk")
    if actor.role != Role.ADMIN:
        rows = rows.filter(user__username=actor.name)
    return rows.filter(user__username=account) if account else rows


def token_get(*, uid: UUID, actor: Actor) -> AuthToken:
    """One of them by `token_uid`. Raises NotFound."""
    found: AuthToken | None = token_list(actor=actor).filter(digest__startswith=uid.hex).first()
    if found is None:
        raise NotFound("there is no such token")
    return found


def token_uid(token: AuthToken) -> UUID:
    """What a token is called by: the beginning of its digest, from which nobody finds the token."""
    return UUID(token.digest[:32])
