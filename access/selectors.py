"""Reads of accounts, teams and tokens; and the `Actor` of a user. Invariants: an inactive account has no actor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Count, Exists, Model, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from knox.models import AuthToken

from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, NotAllowed, NotFound
from access.models import Profile, Team, TeamNamespace

M = TypeVar("M", bound=Model)
SHOWN: Final = 8
"""Characters of a token by which people recognise theirs."""


def actor_of(user: AbstractBaseUser | AnonymousUser) -> Actor:
    """The actor of a signed-in user, in at most two queries. Raises NotAllowed for anonymous or inactive users.

    Admins see all namespaces, and so do scrapers, since metrics name pods; people and machines of scope `rest` see
    those of their teams, other machines none. A machine of another scope than `rest` is a viewer, a superuser an admin.
    """
    if not isinstance(user, User) or not user.is_active:
        raise NotAllowed("sign in first")
    profile = profile_of(user)
    scope, role = scope_of(profile), role_of(user)
    name, service, node = user.get_username(), profile.service, profile.node
    namespaces: frozenset[str] | None = frozenset()
    if scope != TokenScope.REST:
        role = Role.VIEWER
        namespaces = None if scope == TokenScope.METRICS else frozenset()
    elif role == Role.ADMIN:
        namespaces = None
    else:
        namespaces = namespaces_of(user)
    return Actor(name=name, role=role, namespaces=namespaces, service=service, node=node, scope=scope)


def profile_of(user: User) -> Profile:
    """The account's profile, or a viewer's if it has none."""
    try:
        return user.profile
    except Profile.DoesNotExist:
        return Profile(user=user)


def theme_of(user: AbstractBaseUser | AnonymousUser) -> str:
    """The theme that the account chose; empty: the system's."""
    return Profile.objects.filter(user__pk=user.pk or 0).values_list("theme", flat=True).first() or ""


def role_of(user: User) -> Role:
    """The account's role: a superuser is an admin, whatever the profile says."""
    return Role.ADMIN if user.is_superuser else Role(profile_of(user).role)


def scope_of(profile: Profile) -> TokenScope:
    """The scope of the account's tokens. During an upgrade the version before creates agents' accounts without one."""
    return TokenScope.AGENT if profile.node else TokenScope(profile.scope)


def namespaces_of(user: User) -> frozenset[str]:
    """Namespaces of the user's teams."""
    return frozenset(TeamNamespace.objects.filter(team__members=user).values_list("namespace", flat=True))


def teams_by_namespace() -> dict[str, frozenset[str]]:
    """Namespace → names of the teams that own it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for namespace, team in TeamNamespace.objects.values_list("namespace", "team__name"):
        found[namespace].add(team)
    return {namespace: frozenset(teams) for namespace, teams in found.items()}


def team_of_namespace(user: User, actor: Actor) -> dict[str, str]:
    """Namespace → the first team by name that owns it, of the user's teams, or of all for who sees all namespaces."""
    teams = Team.objects.all() if actor.namespaces is None else Team.objects.filter(members=user)
    owned = teams.order_by("-name").values_list("namespaces__namespace", "name")
    return {namespace: name for namespace, name in owned if namespace is not None}


@dataclass(frozen=True, slots=True)
class Account:
    """An account as its pages show it. `tokens`: their number, expired ones included."""

    user: User
    role: Role
    scope: TokenScope
    node: str
    service: bool
    teams: Sequence[Team]
    tokens: int


ACCOUNT_KINDS: Final[Mapping[str, Q]] = {
    "people": ~Q(profile__service=True),
    "machines": Q(profile__service=True),
    "shut": Q(is_active=False),
}
"""Filters of the list of accounts."""


def account_query(*, actor: Actor, search: str = "", kind: str = "") -> QuerySet[User]:
    """Accounts by name, for `account_of`; `search` in the name or as the name of a team. Raises NotAllowed."""
    actor.require_admin()
    tokens = AuthToken.objects.filter(user=OuterRef("pk")).order_by().values("user").annotate(count=Count("pk"))
    rows = (
        User.objects.select_related("profile")
        .prefetch_related("teams")
        .annotate(token_count=Coalesce(Subquery(tokens.values("count")), 0))
        .order_by("username")
    )
    if search:
        of_team = Team.members.through.objects.filter(user=OuterRef("pk"), team__name=search)
        rows = rows.filter(Q(username__icontains=search) | Exists(of_team))
    return rows.filter(ACCOUNT_KINDS[kind]) if kind in ACCOUNT_KINDS else rows


def account_of(user: User) -> Account:
    """A row of `account_query`."""
    profile = profile_of(user)
    return Account(
        user=user,
        role=role_of(user),
        scope=scope_of(profile),
        node=profile.node,
        service=profile.service,
        teams=list(user.teams.all()),
        tokens=user.token_count,  # type: ignore[attr-defined]  # annotated by `account_query`
    )


def first_sign_in_pending() -> bool:
    """Whether nobody has signed in here yet."""
    return not User.objects.filter(last_login__isnull=False).exists()


def account_named(name: str) -> User:
    """The account of a name. Raises NotFound."""
    return _first(User.objects.filter(username=name), f"there is no account {name}")


def account_get(*, user_id: int, actor: Actor) -> Account:
    """One of them. Raises NotAllowed, NotFound."""
    return account_of(_first(account_query(actor=actor).filter(pk=user_id), "there is no such account"))


def account_by_name(*, name: str, actor: Actor) -> Account:
    """One of them by name. Raises NotAllowed, NotFound."""
    return account_of(_first(account_query(actor=actor).filter(username=name), f"there is no account {name}"))


def team_query(*, actor: Actor, search: str = "") -> QuerySet[Team]:
    """Teams by name, with namespaces and members; `search` in the name, or a namespace. Raises NotAllowed."""
    actor.require_admin()
    rows = Team.objects.prefetch_related("namespaces", Prefetch("members", User.objects.order_by("username")))
    if not search:
        return rows
    owned = TeamNamespace.objects.filter(team=OuterRef("pk"), namespace=search)
    return rows.filter(Q(name__icontains=search) | Exists(owned))


def team_get(*, team_id: int, actor: Actor) -> Team:
    """One of them. Raises NotAllowed, NotFound."""
    return _first(team_query(actor=actor).filter(pk=team_id), "there is no such team")


def team_by_name(*, name: str, actor: Actor) -> Team:
    """One of them by name. Raises NotAllowed, NotFound."""
    return _first(team_query(actor=actor).filter(name=name), f"there is no team {name}")


def teams_named(names: Sequence[str]) -> list[Team]:
    """The teams of these names. Raises BadInput for one that is not there."""
    found = list(Team.objects.filter(name__in=names))
    if missing := sorted(set(names) - {team.name for team in found}):
        raise BadInput(f"there is no team {missing[0]}", field="teams", rule="team")
    return found


def accounts_named(names: Sequence[str]) -> list[User]:
    """The accounts of these names. Raises BadInput for one that is not there."""
    found = list(User.objects.filter(username__in=names))
    if missing := sorted(set(names) - {user.get_username() for user in found}):
        raise BadInput(f"there is no account {missing[0]}", field="members", rule="member")
    return found


def team_choices(ids: Sequence[int] | None = None) -> list[Team]:
    """All teams by name, or those of these ids."""
    teams = Team.objects.all()
    return list(teams if ids is None else teams.filter(pk__in=ids))


def token_list(*, actor: Actor, account: str = "") -> QuerySet[AuthToken]:
    """Tokens that the actor may see, with account, scope and use: their own; of everybody for admins."""
    rows: QuerySet[AuthToken] = AuthToken.objects.select_related("user__profile", "use").order_by("-created", "pk")
    if actor.role != Role.ADMIN:
        rows = rows.filter(user__username=actor.name)
    return rows.filter(user__username=account) if account else rows


def token_get(*, uid: UUID, actor: Actor) -> AuthToken:
    """One of them by `token_uid`. Raises NotFound."""
    return _first(token_list(actor=actor).filter(digest__startswith=uid.hex), "there is no such token")


def token_uid(token: AuthToken) -> UUID:
    """The beginning of the token's digest."""
    return UUID(token.digest[:32])


def token_row(token: AuthToken) -> dict[str, Any]:
    """A token of `token_list` as REST and pages show it."""
    profile = profile_of(token.user)
    use = getattr(token, "use", None)
    return {
        "uid": str(token_uid(token)),
        "account": token.user.get_username(),
        "scope": scope_of(profile).value,
        "node": profile.node,
        "start": token.token_key[:SHOWN],
        "created_at": token.created,
        "ends_at": token.expiry,
        "last_used_at": None if use is None else use.last_used_at,
    }


def _first(rows: QuerySet[M, Any], missing: str) -> M:
    found: M | None = rows.first()
    if found is None:
        raise NotFound(missing)
    return found
