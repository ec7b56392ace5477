"""Writes of accounts. Each leaves one audit event, but the choice of a theme.

Called by pages and management commands; tokens have `access.token_services`, teams `access.team_services`. Invariants:
only admins change access; no token makes an admin or sets a password; nobody sets their own password without the old
one; every account made here has a profile; no admin shuts, deletes or turns into a machine their own account, or the
last admin; a change of what tokens open revokes them; caches of an account that changed are dropped (`access.changes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Final

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from access import changes, tokens
from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict, NotAllowed, NotFound
from access.models import Profile, Team
from access.selectors import profile_of, role_of
from audit import services as audit
from audit.choices import EventKind
from kube.names import InvalidName, check_subdomain
from storage.transactions import atomic_retry

RESERVED_NAMES = frozenset({"anonymous", "system"})
"""Actors of audit events that are no accounts: an account of such a name could read those events as its own."""
MACHINE_PREFIXES: Final = ("agent@", "serviceaccount@")
"""Of names of machines: a person of such a name could read their events, and keep them out."""
ADMINS: Final = Q(is_superuser=True) | Q(profile__role=Role.ADMIN)


def user_lock(user: User, *, with_admins: bool = False) -> User:
    """Lock the account's row and read it. Raises NotFound.

    `with_admins`: lock every admin's too, in one order, so that of two admins who shut each other the later is refused.
    """
    rows = User.objects.filter(Q(pk=user.pk) | ADMINS if with_admins else Q(pk=user.pk)).order_by("pk")
    for found in rows.select_for_update(no_key=True, of=("self",)):
        if found.pk == user.pk:
            return found
    raise NotFound(f"there is no account {user.get_username()} any more")


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
    """Create an account; without a password it can only use tokens. `service`: a machine's; `node`: of an agent.

    A machine of another scope than `rest` is a viewer, whatever `role` says.
    Raises NotAllowed, BadInput, Conflict.
    """
    actor.require_admin()
    username = User.normalize_username(username)
    if scope != TokenScope.REST:
        role = Role.VIEWER
    if password is not None or role == Role.ADMIN:
        _require_session(actor)
    _check_machine(service=service, scope=scope, node=node)
    if service and password is not None:
        raise BadInput("a machine has tokens and no password", field="password", rule="machine")
    try:
        User.username_validator(username)
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), field="username", rule="username") from error
    if not service and username.startswith(MACHINE_PREFIXES):
        raise BadInput("agents and ServiceAccounts have such names", field="username", rule="reserved")
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
    except IntegrityError as error:  # created by another request meanwhile
        raise Conflict(f"there is already an account {username}") from error
    Profile.objects.create(user=user, role=role, service=service, scope=scope, node=node)
    chosen = _teams_lock(teams)
    user.teams.set(chosen)
    made = f"account {username} created {_words(role, scope, node)}"
    if chosen:
        made += f", in {_names(chosen)}"
    record_change(made, name=username, actor=actor, now=now, is_new=True, role=role, service=service, scope=scope)
    return user


@atomic_retry
def superuser_create(*, username: str, password: str | None, actor: Actor, now: datetime) -> User:
    """Create an admin who may also use Django's admin. Raises NotAllowed, BadInput, Conflict."""
    user = user_create(username=username, password=password, role=Role.ADMIN, actor=actor, now=now)
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    return user


@atomic_retry
def role_set(*, user: User, role: Role, actor: Actor, now: datetime) -> None:
    """Give the account another role. A superuser with a lower one is none any more. Raises NotAllowed, Conflict."""
    actor.require_admin()
    user = user_lock(user, with_admins=True)
    before = role_of(user)
    if before == role:
        return
    if role == Role.ADMIN:
        _require_session(actor)
    else:
        _require_another_admin(user, actor)
    profile = profile_of(user)
    profile.role = role
    profile.save()
    if role != Role.ADMIN and user.is_superuser:
        user.is_superuser = user.is_staff = False
        user.save(update_fields=["is_superuser", "is_staff"])
    name = user.get_username()
    record_change(f"{name} is now {role}, was {before}", name=name, actor=actor, now=now, role=role, before=before)


@atomic_retry
def machine_set(*, user: User, service: bool, scope: TokenScope, node: str = "", actor: Actor, now: datetime) -> None:
    """Set whether the account is a machine's, what its tokens open, and an agent's node; revoke its tokens.

    A person who becomes a machine loses the password too. Raises NotAllowed, BadInput, Conflict.
    """
    actor.require_admin()
    user = user_lock(user, with_admins=True)
    profile = profile_of(user)
    if (profile.service, profile.scope, profile.node) == (service, scope, node):
        return
    if scope == TokenScope.REST and role_of(user) == Role.ADMIN:
        _require_session(actor)
    _check_machine(service=service, scope=scope, node=node)
    if service and not profile.service:
        _refuse_oneself(user, actor, "turn your own account into a machine account")
        _require_another_admin(user, actor)
        user.set_unusable_password()
        user.save(update_fields=["password"])
    profile.service, profile.scope, profile.node = service, scope, node
    profile.save()
    name, revoked = user.get_username(), tokens.revoke_all(user)
    record_change(
        f"account {name} is now {_words(role_of(user), scope, node)}{_revoked(revoked)}",
        name=name,
        actor=actor,
        now=now,
        service=service,
        scope=scope,
        node=node,
        tokens_revoked=revoked,
    )


@atomic_retry
def user_teams_set(
    *, user: User, teams: Iterable[Team], actor: Actor, now: datetime, seen: Collection[int] | None = None
) -> None:
    """Put the account into these teams and no others. Raises NotAllowed, NotFound, Conflict.

    `seen`: ids of the teams that it was in when the choice was made; a Conflict where others have changed them since.
    """
    actor.require_admin()
    user = user_lock(user)
    before, after = list(user.teams.all()), sorted(set(teams), key=lambda team: team.name)
    if seen is not None and {team.pk for team in before} != {*seen}:
        raise Conflict(f"{user.get_username()} is in {_names(before)} by now: look again", field="teams", rule="seen")
    if before == after:
        return
    _teams_lock(after)
    user.teams.set(after)
    name = user.get_username()
    message = f"{name} is now in {_names(after)}, was in {_names(before)}"
    record_change(message, name=name, actor=actor, now=now, teams=[team.name for team in after])


@atomic_retry
def user_active_set(*, user: User, active: bool, actor: Actor, now: datetime) -> None:
    """Open the account, or shut it and revoke its tokens. Raises NotAllowed, Conflict."""
    actor.require_admin()
    user = user_lock(user, with_admins=True)
    if user.is_active == active:
        return
    if not active:
        _refuse_oneself(user, actor, "deactivate your own account")
        _require_another_admin(user, actor)
    user.is_active = active
    user.save(update_fields=["is_active"])
    revoked = 0 if active else tokens.revoke_all(user)
    if not active:
        _sessions_end(user, now)
    name = user.get_username()
    message = f"account {name} {'opened' if active else 'shut'}{_revoked(revoked)}"
    record_change(message, name=name, actor=actor, now=now, active=active, tokens_revoked=revoked)


@atomic_retry
def user_delete(*, user: User, actor: Actor, now: datetime) -> None:
    """Delete the account, its tokens and its idempotency records. Raises NotAllowed, Conflict, NotFound."""
    actor.require_admin()
    user = user_lock(user, with_admins=True)
    _refuse_oneself(user, actor, "delete your own account")
    _require_another_admin(user, actor)
    name, revoked = user.get_username(), tokens.revoke_all(user)
    user.delete()
    message = f"account {name} deleted{_revoked(revoked)}"
    record_change(message, name=name, actor=actor, now=now, tokens_revoked=revoked)


@atomic_retry
def password_set(*, user: User, password: str, actor: Actor, now: datetime, old_checked: bool = False) -> None:
    """Set a person's password: another's by an admin, or one's own. Raises NotAllowed, BadInput.

    `old_checked`: the caller has checked the old password, without which nobody sets their own.
    """
    name = user.get_username()
    if actor.name != name:
        actor.require_admin()
    _require_session(actor)
    user = user_lock(user)
    if profile_of(user).service:
        raise BadInput("a machine has tokens and no password", field="password", rule="machine")
    if user.identities.exists():
        raise BadInput("who signs in by a provider has no password", field="password", rule="provider")
    if actor.name == name and not old_checked:
        raise BadInput("set your own on the page for it, which asks for the old one", field="password", rule="own")
    _check_password(password, name)
    user.set_password(password)
    user.save(update_fields=["password"])
    record_change(f"password of {name} changed", name=name, actor=actor, now=now)


def theme_set(*, user: User, theme: str) -> None:
    """Set the account's theme: light, dark, or empty for the system's."""
    Profile.objects.update_or_create(user=user, defaults={"theme": theme})


@atomic_retry
def signed_in(*, user: User, address: str, now: datetime, provider: str = "") -> None:
    """Record a sign-in. `provider`: the id of the one that named the person; empty: by password."""
    name = user.get_username()
    audit.record(
        kind=EventKind.SIGNED_IN,
        message=f"{name} signed in{f' by {provider}' if provider else ''}",
        actor=name,
        name=name,
        now=now,
        data={"address": address} | ({"provider": provider} if provider else {}),
    )


@atomic_retry
def sign_in_failed(*, username: str, address: str, count: int, since: datetime, waits: bool, now: datetime) -> None:
    """Record `count` refused sign-ins of a name from an address. `waits`: further ones have to wait."""
    shown = name_shown(username)
    times = "" if count == 1 else f" {count} times"
    audit.record(
        kind=EventKind.SIGN_IN_FAILED,
        message=f"sign-in as {shown} refused{times}{'; further ones have to wait' if waits else ''}",
        actor="anonymous",
        name=shown,
        now=now,
        data={"address": address, "count": count, "since": since.isoformat(), "waits": waits},
    )


@atomic_retry
def sign_ins_failed(*, count: int, names: int, addresses: int, now: datetime) -> None:
    """Record refused sign-ins that were too many to be recorded one by one."""
    audit.record(
        kind=EventKind.SIGN_IN_FAILED,
        message=f"{count} more sign-ins refused, as {names} names from {addresses} addresses",
        actor="anonymous",
        now=now,
        data={"count": count, "names": names, "addresses": addresses},
    )


def name_shown(typed: str) -> str:
    """A user name as typed, shortened and made printable for the audit trail."""
    return "".join(letter if letter.isprintable() else "�" for letter in typed[:150])


def _teams_lock(teams: Iterable[Team]) -> list[Team]:
    """Lock the teams' rows and read them, by name. Raises Conflict where one was deleted since the caller read it."""
    names = {team.pk: team.name for team in teams}
    found = list(Team.objects.select_for_update(no_key=True).filter(pk__in=names))
    if missing := names.keys() - {team.pk for team in found}:
        raise Conflict(f"there is no team {names[min(missing)]} any more")
    return found


def _check_password(password: str, username: str) -> None:
    try:
        validate_password(password, User(username=username))
    except ValidationError as error:
        raise BadInput(" ".join(error.messages), field="password", rule="password") from error


def _check_machine(*, service: bool, scope: TokenScope, node: str) -> None:
    if scope != TokenScope.REST and not service:
        raise BadInput("only machine accounts have another scope than rest", field="scope", rule="scope")
    if (scope == TokenScope.AGENT) != bool(node):
        raise BadInput("an agent's account, and no other, names its node", field="node", rule="node")
    if not node:
        return
    try:
        check_subdomain(node, what="node")
    except InvalidName as error:
        raise BadInput(str(error), field="node", rule="node") from error
    if Profile.objects.filter(node=node).exists():
        raise Conflict(f"there is already an account of the agent of {node}")


def _sessions_end(user: User, now: datetime) -> None:
    """Delete the account's sessions: one of before would count again once the account is opened."""
    sessions = Session.objects.filter(expire_date__gt=now).iterator()
    ended = [session.pk for session in sessions if session.get_decoded().get(SESSION_KEY) == str(user.pk)]
    Session.objects.filter(pk__in=ended).delete()


def _require_session(actor: Actor) -> None:
    """Raise NotAllowed for a token, which would outlive its end by an admin or a password that it makes."""
    if actor.token:
        raise NotAllowed("a token cannot create admins or set passwords: sign in and use the page Accounts")


def _refuse_oneself(user: User, actor: Actor, what: str) -> None:
    if actor.name == user.get_username():
        raise Conflict(f"you cannot {what}: ask another admin")


def _require_another_admin(user: User, actor: Actor) -> None:
    """Raise Conflict if the account is the last admin. The rows are locked; management commands are exempt."""
    if actor is SYSTEM or role_of(user) != Role.ADMIN:
        return
    others = User.objects.filter(ADMINS, is_active=True).exclude(pk=user.pk).exclude(profile__service=True)
    if not others.exists():
        raise Conflict(f"{user.get_username()} is the last admin: make another one first")


def _words(role: Role, scope: TokenScope, node: str) -> str:
    if scope == TokenScope.REST:
        return f"as {role}"
    return f"for {scope.label}{f' {node}' if node else ''}"


def _names(teams: Iterable[Team]) -> str:
    return ", ".join(f"team {team.name}" for team in teams) or "no team"


def _revoked(count: int) -> str:
    return f", {count} token{'' if count == 1 else 's'} revoked" if count else ""


def record_change(
    message: str,
    *,
    name: str,
    actor: Actor,
    now: datetime,
    account: str | None = None,
    is_new: bool = False,
    kind: EventKind = EventKind.ACCESS_CHANGED,
    **data: Any,
) -> None:
    """Write the event of a change of access, and drop what processes cache of `account`.

    `account`: `name` where it is left out, "" for all accounts. `is_new`: nothing is cached of it yet.
    """
    if not is_new:
        changes.announce_change(name if account is None else account)
    audit.record(kind=kind, message=message, actor=actor.name, name=name, now=now, data=data)
