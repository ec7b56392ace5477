"""Writes of tokens: issue, end, revoke. Each leaves an audit event.

Called by REST, pages and commands. Invariants: a token opens what the scope of its account says; a person's token ends
at most GPUPLANE_TOKEN_MOST_DAYS after it was issued, or after a session last set its end; no token issues one of scope
`rest`, or one that ends later than itself, so that a stolen token cannot outlive its end.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet
from knox.crypto import hash_token
from knox.models import AuthToken

from access import tokens
from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict, NotAllowed, NotFound
from access.models import Profile
from access.selectors import SHOWN
from access.services import record_change, user_create, user_lock
from audit.choices import EventKind
from kube.names import InvalidName, check_subdomain
from storage.transactions import atomic_retry

LONGEST_NODE: Final = 140
"""Of a node's name that is part of an account's."""


@atomic_retry
def token_create(
    *,
    actor: Actor,
    now: datetime,
    scope: TokenScope = TokenScope.REST,
    account: str = "",
    node: str = "",
    days: int | None = None,
) -> str:
    """Issue a token: one's own, or, by admins, a machine's. It cannot be read again.

    `account`: the machine's, created where there is none; an agent's is found by `node`. One's own needs neither.
    Raises NotAllowed, BadInput, Conflict.
    """
    if scope == TokenScope.REST and actor.token:
        raise NotAllowed("a token issues none of scope rest: sign in, and make it on the page of tokens")
    if scope == TokenScope.AGENT:
        if account:
            raise BadInput("an agent's token goes by node", field="account", rule="account")
        return agent_token(node=node, actor=actor, now=now, days=days)
    if node:
        raise BadInput("only an agent's token names a node", field="node", rule="node")
    if scope == TokenScope.REST and account in ("", actor.name):
        user = User.objects.filter(username=actor.name).first()
        if user is None:
            raise NotAllowed("sign in first")
        return token_issue(user=user, actor=actor, now=now, days=days)
    if not account:
        raise BadInput("name the machine's account", field="account", rule="required")
    return service_token(username=account, scope=scope, actor=actor, now=now, days=days)


@atomic_retry
def agent_token(*, node: str, actor: Actor, now: datetime, days: int | None = None) -> str:
    """Issue a token to the agent of one node, and revoke its others.

    Raises NotAllowed, BadInput, Conflict where the node's account is shut.
    """
    actor.require_admin()
    try:
        check_subdomain(node, what="node")
    except InvalidName as error:
        raise BadInput(str(error), field="node", rule="node") from error
    name = f"agent@{node}" if len(node) <= LONGEST_NODE else f"agent@{sha256(node.encode()).hexdigest()}"
    agents = User.objects.filter(profile__node=node)
    user = _machine(agents, username=name, scope=TokenScope.AGENT, node=node, actor=actor, now=now)
    return _replace(user=user, actor=actor, now=now, days=days)


@atomic_retry
def service_token(
    *,
    username: str,
    scope: TokenScope,
    actor: Actor,
    now: datetime,
    role: Role = Role.VIEWER,
    days: int | None = None,
) -> str:
    """Issue a token to a machine account, created where there is none, and revoke its others.

    `role`: of a new account of scope `rest`. Raises NotAllowed, BadInput, and Conflict where a person, a node's agent,
    or a machine of another scope has that name.
    """
    actor.require_admin()
    if scope == TokenScope.AGENT:
        raise BadInput("an agent's token goes by its node", field="scope", rule="scope")
    if scope != TokenScope.REST:
        role = Role.VIEWER
    named = User.objects.filter(username=username)
    user = _machine(named, username=username, scope=scope, role=role, actor=actor, now=now)
    profile = Profile.objects.filter(user=user, service=True, node="").first()
    if profile is None or not user.is_active:
        raise Conflict(f"{username} is no open machine account")
    if profile.scope != scope:
        raise Conflict(f"{username} has the scope {profile.scope}; take an account of another name for {scope.value}")
    return _replace(user=user, actor=actor, now=now, days=days)


@atomic_retry
def token_issue(*, user: User, actor: Actor, now: datetime, days: int | None = None, without_end: bool = False) -> str:
    """Issue a token: one's own, or anybody's by an admin.

    `days` None: GPUPLANE_TOKEN_DAYS for a person, no end for a machine; at most the end of the token that the request
    came with. `without_end` is for the start-up command alone. Raises NotAllowed, BadInput, Conflict
    for an account that is shut.
    """
    if actor.name != user.get_username():
        actor.require_admin()
    if not user_lock(user).is_active:
        raise Conflict(f"the account {user.get_username()} is shut")
    machine = Profile.objects.filter(user=user, service=True).exists()
    if without_end and actor is not SYSTEM:
        raise NotAllowed("only gpuplane's own start-up issues tokens of people that have no end")
    ends_at = None if without_end else _end(days, machine=machine, now=now)
    own_end = _own_end(actor)
    if own_end is not None and (ends_at is None or ends_at > own_end):
        if days is not None:
            raise NotAllowed(f"a token issues none that ends later than itself, at {own_end:%Y-%m-%d %H:%M} UTC")
        ends_at = own_end
    token = tokens.issue(user, now=now, ends_at=ends_at)
    name = user.get_username()
    until = "without an end" if ends_at is None else f"until {ends_at:%Y-%m-%d %H:%M} UTC"
    record_change(
        f"token {token[:SHOWN]}… issued to {name}, {until}",
        kind=EventKind.TOKEN_ISSUED,
        name=name,
        actor=actor,
        now=now,
        is_new=True,
        token=hash_token(token)[:32],
        ends_at=ends_at,
    )
    return token


@atomic_retry
def token_end_set(*, token: AuthToken, days: int, actor: Actor, now: datetime) -> None:
    """Set the end of a token, one's own or anybody's by an admin; only a session may put it off.

    Raises NotAllowed, BadInput, NotFound where it was revoked meanwhile.
    """
    name = token.user.get_username()
    if actor.name != name:
        actor.require_admin()
    ends_at = _after(days, now=now)
    locked = AuthToken.objects.select_for_update().filter(pk=token.pk).first()
    if locked is None:
        raise NotFound("there is no such token")
    before = locked.expiry
    if actor.token and before is not None and ends_at > before:
        raise NotAllowed("a token cannot put off the end of a token: sign in, and do it on the page of tokens")
    AuthToken.objects.filter(pk=token.pk).update(expiry=ends_at)
    token.expiry = ends_at
    record_change(
        f"token {token.token_key[:SHOWN]}… of {name} ends {ends_at:%Y-%m-%d %H:%M} UTC",
        kind=EventKind.TOKEN_END_SET,
        name=name,
        actor=actor,
        now=now,
        token=token.digest[:32],
        ends_at=ends_at,
        before=before,
    )


@atomic_retry
def token_revoke(*, token: AuthToken, actor: Actor, now: datetime) -> None:
    """Revoke one token: one's own, or anybody's by an admin. Raises NotAllowed, NotFound."""
    name = token.user.get_username()
    if actor.name != name:
        actor.require_admin()
    shown, digest = token.token_key[:SHOWN], token.digest
    if not AuthToken.objects.filter(pk=digest).delete()[0]:
        raise NotFound("there is no such token")
    message = f"token {shown}… of {name} revoked"
    record_change(message, kind=EventKind.TOKEN_REVOKED, name=name, actor=actor, now=now, token=digest[:32])


@atomic_retry
def tokens_revoke(*, user: User, actor: Actor, now: datetime) -> int:
    """Revoke every token of the account; return their number. Raises NotAllowed."""
    name = user.get_username()
    if actor.name != name:
        actor.require_admin()
    count = tokens.revoke_all(user)
    message = f"{count} tokens of {name} revoked"
    record_change(message, kind=EventKind.TOKEN_REVOKED, name=name, actor=actor, now=now, count=count)
    return count


def _replace(*, user: User, actor: Actor, now: datetime, days: int | None) -> str:
    """Issue the account's only token: of two issued at once the later one stays."""
    user_lock(user)
    if AuthToken.objects.filter(user=user).exists():
        tokens_revoke(user=user, actor=actor, now=now)
    return token_issue(user=user, actor=actor, now=now, days=days)


def _machine(
    rows: QuerySet[User],
    *,
    username: str,
    scope: TokenScope,
    actor: Actor,
    now: datetime,
    role: Role = Role.VIEWER,
    node: str = "",
) -> User:
    """The machine account in `rows`, created where there is none; another request may be creating it."""
    found = rows.first()
    if found is not None:
        return found
    try:
        return user_create(
            username=username, password=None, role=role, actor=actor, now=now, service=True, scope=scope, node=node
        )
    except Conflict:
        found = rows.all().first()
        if found is None:
            raise
        return found


def _own_end(actor: Actor) -> datetime | None:
    """The end of the token that the actor came with; None for a session or no end. Raises NotAllowed if revoked."""
    if not actor.token:
        return None
    ends = AuthToken.objects.filter(pk=actor.token).values_list("expiry", flat=True)
    if not ends:
        raise NotAllowed("the token was revoked")
    own_end: datetime | None = ends[0]
    return own_end


def _end(days: int | None, *, machine: bool, now: datetime) -> datetime | None:
    if days is None:
        if machine:
            return None
        days = min(settings.GPUPLANE_TOKEN_DAYS, settings.GPUPLANE_TOKEN_MOST_DAYS)
    return _after(days, now=now)


def _after(days: int, *, now: datetime) -> datetime:
    most = settings.GPUPLANE_TOKEN_MOST_DAYS
    if not 1 <= days <= most:
        raise BadInput(f"days must be 1 to {most}", field="days", rule="days")
    return now + timedelta(days=days)
