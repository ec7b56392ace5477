"""Writes of who may do what: accounts, roles, teams and their namespaces. Each leaves an audit event.

Called by REST, pages and the start-up command; tokens have `access.token_services`. Kept true: only admins change
access; an account always has a profile; what processes remember of an account that changed is forgotten
(`access.changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from access import changes, tokens
from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict, NotFound
from access.models import Profile, Team, TeamNamespace
from access.transactions import atomic_retry
from audit import services as audit
from audit.choices import Kind
from kube.names import InvalidName, check_label, check_namespace

RESERVED_NAMES = frozenset({"anonymous", "system"})
"""Actors of events about access that are nobody's account: whoever had such a name would read them as their own."""


@atomic_retry
def user_create(
    *,
    username: str,
    password: str | None,
    role: Role,
    actor: Actor,
    now: datetime,
    service: bool = False,
    scope: TokenScope = TokenScope.REST,
    node: str = "",
    teams: Iterable[Team] = (),
) -> User:
    """Create an account; without a password it can only use tokens. `service`: a machine's, whose tokens open what `scope` says.

    `node`: of an agent, the node that it speaks for. Raises NotAllowed, BadInput, Conflict.
    """
    actor.require_admin()
    if scope != TokenScope.REST and not service:
        raise BadInput("only machine accounts have another scope than rest", field="scope", rule="scope")
    if (scope == TokenScope.AGENT) != bool(node):
        raise BadInput("an agent's account, and no other, names its node", field="node", rule="node")
    try:
        User.username_validator(username)
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), field="username", rule="username") from error
    if username in RESERVED_NAMES:
        raise BadInput(f"{username} names gpuplane itself in the audit trail", field="username", rule="reserved")
    if not 1 <= len(username) <= 150:
        raise BadInput("username must have 1 to 150 characters", field="username", rule="username")
    if User.objects.filter(username=username).exists():
        raise Conflict(f"there is already an account {username}")
    if password is not None:
        _check_password(password, username)
    try:
        with transaction.atomic():
            user = User.objects.create_user(username, password=password)
    except IntegrityError as error:  # somebody made it in this very moment
        raise Conflict(f"there is already an account {username}") from error
    Profile.objects.create(user=user, role=role, service=service, scope=scope, node=node)
    user.teams.set(teams)
    described = (
        f"account {username} created as {role}"
        if scope == TokenScope.REST
        else f"account {username} created for {scope.label}"
    )
    changed(described, name=username, actor=actor, now=now, role=role, service=service, scope=scope, account=None)
    return user


@atomic_retry
def superuser_create(*, username: str, password: str | None, actor: Actor, now: datetime) -> User:
    """Create an admin who may also use Django's admin. Raises NotAllowed, BadInput, Conflict."""
    user = user_create(username=username, password=password, role=Role.ADMIN, actor=actor, now=now)
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    return user


def role_set(*, user: User, role: Role, actor: Actor, now: datetime) -> None:
    """Give the account another role. Raises NotAllowed."""
    actor.require_admin()
    profile, _ = Profile.objects.get_or_create(user=user)
    if profile.role == role:
        return
    before = profile.role
    profile.role = role
    profile.save(update_fields=["role"])
    name = user.get_username()
    changed(
        f"{name} is now {role}, was {before}", name=name, actor=actor, now=now, role=role, before=before, account=name
    )


@atomic_retry
def user_active_set(*, user: User, active: bool, actor: Actor, now: datetime) -> None:
    """Let the account sign in, or shut it out and revoke its tokens. Raises NotAllowed."""
    actor.require_admin()
    if user.is_active == active:
        return
    user.is_active = active
    user.save(update_fields=["is_active"])
    revoked = 0 if active else tokens.revoke_all(user)
    name = user.get_username()
    changed(
        f"account {name} {'opened' if active else 'shut'}",
        name=name,
        actor=actor,
        now=now,
        account=name,
        active=active,
        tokens_revoked=revoked,
    )


@atomic_retry
def password_set(*, user: User, password: str, actor: Actor, now: datetime) -> None:
    """Set an account's password: one's own, or anybody's by an admin. Raises NotAllowed, BadInput."""
    if actor.name != user.get_username():
        actor.require_admin()
    _check_password(password, user.get_username())
    user.set_password(password)
    user.save(update_fields=["password"])
    password_changed(user=user, actor=actor, now=now)


@atomic_retry
def password_changed(*, user: User, actor: Actor, now: datetime) -> None:
    """Note that a password was set: by `password_set`, or by a form of Django's that checked it."""
    name = user.get_username()
    changed(f"password of {name} changed", name=name, actor=actor, now=now, account=name)


@atomic_retry
def team_create(*, name: str, actor: Actor, now: datetime, namespaces: Iterable[str] = ()) -> Team:
    """Create a team, with namespaces. Raises NotAllowed, BadInput, Conflict."""
    actor.require_admin()
    try:
        check_label(name)
    except InvalidName as error:
        raise BadInput(str(error), field="name", rule=error.rule) from error
    if Team.objects.filter(name=name).exists():
        raise Conflict(f"there is already a team {name}")
    team = Team.objects.create(name=name)
    changed(f"team {name} created", name=name, actor=actor, now=now)
    for namespace in namespaces:
        team_namespace_add(team=team, namespace=namespace, actor=actor, now=now)
    return team


@atomic_retry
def team_delete(*, team: Team, actor: Actor, now: datetime) -> None:
    """Delete a team; its members lose its namespaces. Raises NotAllowed."""
    actor.require_admin()
    name = team.name
    team.delete()
    changed(f"team {name} deleted", name=name, actor=actor, now=now)


@atomic_retry
def team_namespace_add(*, team: Team, namespace: str, actor: Actor, now: datetime) -> None:
    """Let the team see and write in a namespace. Raises NotAllowed, BadInput."""
    actor.require_admin()
    try:
        check_namespace(namespace)
    except InvalidName as error:
        raise BadInput(str(error), field="namespace", rule=error.rule) from error
    _, created = TeamNamespace.objects.get_or_create(team=team, namespace=namespace)
    if created:
        changed(
            f"namespace {namespace} given to team {team.name}",
            name=team.name,
            actor=actor,
            now=now,
            namespace=namespace,
        )


@atomic_retry
def team_namespace_remove(*, team: Team, namespace: str, actor: Actor, now: datetime) -> None:
    """Take a namespace from the team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    count, _ = TeamNamespace.objects.filter(team=team, namespace=namespace).delete()
    if not count:
        raise NotFound(f"team {team.name} does not own the namespace {namespace}")
    changed(
        f"namespace {namespace} taken from team {team.name}", name=team.name, actor=actor, now=now, namespace=namespace
    )


@atomic_retry
def team_member_add(*, team: Team, user: User, actor: Actor, now: datetime) -> None:
    """Put an account into a team. Raises NotAllowed."""
    actor.require_admin()
    if team.members.filter(pk=user.pk).exists():
        return
    team.members.add(user)
    name = user.get_username()
    changed(f"{name} joined team {team.name}", name=name, actor=actor, now=now, team=team.name, account=name)


@atomic_retry
def team_member_remove(*, team: Team, user: User, actor: Actor, now: datetime) -> None:
    """Take an account out of a team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    name = user.get_username()
    if not team.members.filter(pk=user.pk).exists():
        raise NotFound(f"{name} is not in team {team.name}")
    team.members.remove(user)
    changed(f"{name} left team {team.name}", name=name, actor=actor, now=now, team=team.name, account=name)


@atomic_retry
def signed_in(*, user: User, now: datetime, address: str = "") -> None:
    """Note that somebody signed in."""
    name = user.get_username()
    audit.record(
        kind=Kind.SIGNED_IN, message=f"{name} signed in", actor=name, name=name, now=now, data={"address": address}
    )


@atomic_retry
def sign_in_failed(
    *,
    username: str,
    now: datetime,
    address: str = "",
    count: int = 1,
    since: datetime | None = None,
    waits: bool = False,
) -> None:
    """Note `count` refused sign-ins of a name from an address. `waits`: no more are tried for now."""
    shown = name_shown(username)
    times = "" if count == 1 else f" {count} times"
    audit.record(
        kind=Kind.SIGN_IN_FAILED,
        message=f"sign-in as {shown} refused{times}{'; further ones have to wait' if waits else ''}",
        actor="anonymous",
        name=shown,
        now=now,
        data={"address": address, "count": count, "since": (since or now).isoformat(), "waits": waits},
    )


@atomic_retry
def sign_ins_failed(*, count: int, names: int, addresses: int, now: datetime) -> None:
    """Note refused sign-ins that were too many to be noted one by one."""
    audit.record(
        kind=Kind.SIGN_IN_FAILED,
        message=f"{count} more sign-ins refused, as {names} names from {addresses} addresses",
        actor="anonymous",
        now=now,
        data={"count": count, "names": names, "addresses": addresses},
    )


def name_counted(typed: str) -> str:
    """A user name as Django's sign-in form looks it up: stripped, NFKC. Databases compare it letter by letter, with case."""
    return str(User.normalize_username(typed.strip())).strip()


def name_shown(typed: str) -> str:
    """A user name as typed, as the audit trail keeps it: shortened and made printable."""
    return "".join(letter if letter.isprintable() else "�" for letter in typed[:150])


def _check_password(password: str, username: str) -> None:
    try:
        validate_password(password, User(username=username))
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), field="password", rule="password") from error


def changed(
    message: str,
    *,
    name: str,
    actor: Actor,
    now: datetime,
    account: str | None = "",
    kind: Kind = Kind.ACCESS_CHANGED,
    **data: Any,
) -> None:
    """Write the event of a change of access, and have the account (all, where it is empty) read anew everywhere.

    `account` None: nothing that anybody remembers is otherwise now.
    """
    if account is not None:
        changes.tell(account)
    audit.record(kind=kind, message=message, actor=actor.name, name=name, now=now, data=data)
