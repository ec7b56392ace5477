"""Writes of who may do what: accounts, roles, teams and their namespaces. Each leaves an audit event.

Called by REST, pages and the start-up command. Kept true: only admins change access; an account
always has a profile; tokens known to this process are forgotten, so that a change holds at once here
and within `access.tokens.FRESH_SECONDS` elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from access import tokens
from access.actors import Actor
from access.choices import Role
from access.errors import BadInput, Conflict, NotFound
from access.models import Profile, Team, TeamNamespace
from access.transactions import atomic_retry
from audit import services as audit
from audit.choices import Kind
from kube.names import InvalidName, check_label, check_namespace, check_subdomain

LONGEST_NODE: Final = 140
"""Of a node's name that is part of an account's."""


@atomic_retry
def user_create(
    *,
    username: str,
    password: str | None,
    role: Role,
    actor: Actor,
    now: datetime,
    service: bool = False,
    node: str = "",
    teams: Iterable[Team] = (),
) -> User:
    """Create an account; without a password it can only use tokens. `node`: it speaks for this node alone.

    Raises NotAllowed, BadInput, Conflict.
    """
    actor.require_admin()
    try:
        User.username_validator(username)
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), field="username", rule="username") from error
    if not 1 <= len(username) <= 150:
        raise BadInput("username must have 1 to 150 characters", field="username", rule="username")
    if User.objects.filter(username=username).exists():
        raise Conflict(f"there is already an account {username}")
    if password is not None:
        _check_password(password, username)
    user = User.objects.create_user(username, password=password)
    Profile.objects.create(user=user, role=role, service=service, node=node)
    user.teams.set(teams)
    _changed(f"account {username} created as {role}", name=username, actor=actor, now=now, role=role, service=service)
    return user


@atomic_retry
def superuser_create(*, username: str, password: str | None, actor: Actor, now: datetime) -> User:
    """Create an admin who may also use Django's admin. Raises NotAllowed, BadInput, Conflict."""
    user = user_create(username=username, password=password, role=Role.ADMIN, actor=actor, now=now)
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    return user


@atomic_retry
def agent_token(*, node: str, actor: Actor, now: datetime) -> str:
    """A fresh token by which the agent of one node may speak for it, and for no other; those before it are revoked.

    Shown this once. Raises NotAllowed, BadInput.
    """
    actor.require_admin()
    try:
        check_subdomain(node, what="node")
    except InvalidName as error:
        raise BadInput(str(error), field="node", rule="node") from error
    user = User.objects.filter(profile__node=node).first()
    if user is None:
        name = f"agent@{node}" if len(node) <= LONGEST_NODE else f"agent@{sha256(node.encode()).hexdigest()}"
        user = user_create(
            username=name, password=None, role=Role.VIEWER, actor=actor, now=now, service=True, node=node
        )
    tokens.revoke_all(user)
    return token_issue(user=user, actor=actor, now=now)


@atomic_retry
def service_token(*, username: str, actor: Actor, now: datetime) -> str:
    """A fresh token of a service account, which is made where there is none; those before it are revoked.

    Shown this once. Raises NotAllowed, BadInput, and Conflict where a person, or a node's agent, has that name.
    """
    actor.require_admin()
    user = User.objects.filter(username=username).first()
    if user is None:
        user = user_create(username=username, password=None, role=Role.VIEWER, actor=actor, now=now, service=True)
    elif not Profile.objects.filter(user=user, service=True, node="").exists() or not user.is_active:
        raise Conflict(f"{username} is no open service account")
    tokens.revoke_all(user)
    return token_issue(user=user, actor=actor, now=now)


@atomic_retry
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
    _changed(f"{name} is now {role}, was {before}", name=name, actor=actor, now=now, role=role, before=before)


@atomic_retry
def user_active_set(*, user: User, active: bool, actor: Actor, now: datetime) -> None:
    """Let the account sign in, or shut it out and revoke its tokens. Raises NotAllowed."""
    actor.require_admin()
    if user.is_active == active:
        return
    user.is_active = active
    user.save(update_fields=["is_active"])
    if not active:
        tokens.revoke_all(user)
    name = user.get_username()
    _changed(f"account {name} {'opened' if active else 'shut'}", name=name, actor=actor, now=now, active=active)


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
    _changed(f"password of {name} changed", name=name, actor=actor, now=now)


@atomic_retry
def token_issue(*, user: User, actor: Actor, now: datetime) -> str:
    """A fresh API token: one's own, or anybody's by an admin. Shown this once. Raises NotAllowed."""
    if actor.name != user.get_username():
        actor.require_admin()
    token = tokens.issue(user, now=now)
    name = user.get_username()
    _changed(f"token issued to {name}", name=name, actor=actor, now=now)
    return token


@atomic_retry
def tokens_revoke(*, user: User, actor: Actor, now: datetime) -> int:
    """Revoke every token of the account; how many. Raises NotAllowed."""
    if actor.name != user.get_username():
        actor.require_admin()
    count = tokens.revoke_all(user)
    name = user.get_username()
    _changed(f"{count} tokens of {name} revoked", name=name, actor=actor, now=now, count=count)
    return count


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
    _changed(f"team {name} created", name=name, actor=actor, now=now)
    for namespace in namespaces:
        team_namespace_add(team=team, namespace=namespace, actor=actor, now=now)
    return team


@atomic_retry
def team_delete(*, team: Team, actor: Actor, now: datetime) -> None:
    """Delete a team; its members lose its namespaces. Raises NotAllowed."""
    actor.require_admin()
    name = team.name
    team.delete()
    _changed(f"team {name} deleted", name=name, actor=actor, now=now)


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
        _changed(
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
    _changed(
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
    _changed(f"{name} joined team {team.name}", name=name, actor=actor, now=now, team=team.name)


@atomic_retry
def team_member_remove(*, team: Team, user: User, actor: Actor, now: datetime) -> None:
    """Take an account out of a team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    name = user.get_username()
    if not team.members.filter(pk=user.pk).exists():
        raise NotFound(f"{name} is not in team {team.name}")
    team.members.remove(user)
    _changed(f"{name} left team {team.name}", name=name, actor=actor, now=now, team=team.name)


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


def _changed(message: str, *, name: str, actor: Actor, now: datetime, **data: Any) -> None:
    transaction.on_commit(tokens.forget)
    audit.record(kind=Kind.ACCESS_CHANGED, message=message, actor=actor.name, name=name, now=now, data=data)
