"""Writes of teams: their namespaces and members. Each leaves one audit event.

Called by pages and REST. Invariants: only admins change teams; namespaces are DNS-1123 labels; caches of members
concerned are dropped (`access.changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.contrib.auth.models import User

from access.actors import Actor
from access.errors import BadInput, Conflict, NotFound
from access.models import Team, TeamNamespace
from access.services import record_change, user_lock
from kube.names import InvalidName, check_label, check_namespace
from storage.transactions import atomic_retry


@atomic_retry
def team_create(*, name: str, actor: Actor, now: datetime, namespaces: Iterable[str] = ()) -> Team:
    """Create a team, with namespaces. Raises NotAllowed, BadInput, Conflict."""
    actor.require_admin()
    try:
        check_label(name)
    except InvalidName as error:
        raise BadInput(str(error), field="name", rule=error.rule) from error
    owned = sorted({_namespace(namespace) for namespace in namespaces})
    if Team.objects.filter(name=name).exists():
        raise Conflict(f"there is already a team {name}")
    team = Team.objects.create(name=name)
    TeamNamespace.objects.bulk_create(TeamNamespace(team=team, namespace=namespace) for namespace in owned)
    of = f" of {', '.join(owned)}" if owned else ""
    record_change(f"team {name} created{of}", name=name, actor=actor, now=now, is_new=True, namespaces=owned)
    return team


@atomic_retry
def team_delete(*, team: Team, actor: Actor, now: datetime) -> None:
    """Delete a team; its members lose its namespaces. Raises NotAllowed, NotFound."""
    actor.require_admin()
    if not Team.objects.filter(pk=team.pk).delete()[0]:
        raise NotFound(f"there is no team {team.name} any more")
    record_change(f"team {team.name} deleted", name=team.name, actor=actor, now=now, account="")


@atomic_retry
def team_namespace_add(*, team: Team, namespace: str, actor: Actor, now: datetime) -> None:
    """Let the team see and write in a namespace. Raises NotAllowed, BadInput, NotFound."""
    actor.require_admin()
    _lock(team)
    _, created = TeamNamespace.objects.get_or_create(team=team, namespace=_namespace(namespace))
    if created:
        message = f"namespace {namespace} given to team {team.name}"
        record_change(message, name=team.name, actor=actor, now=now, account="", namespace=namespace)


@atomic_retry
def team_namespace_remove(*, team: Team, namespace: str, actor: Actor, now: datetime) -> None:
    """Take a namespace from the team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    count, _ = TeamNamespace.objects.filter(team=team, namespace=namespace).delete()
    if not count:
        raise NotFound(f"team {team.name} does not own the namespace {namespace}")
    message = f"namespace {namespace} taken from team {team.name}"
    record_change(message, name=team.name, actor=actor, now=now, account="", namespace=namespace)


@atomic_retry
def team_member_add(*, team: Team, user: User, actor: Actor, now: datetime) -> None:
    """Put an account into a team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    _lock(team)
    user_lock(user)
    if team.members.filter(pk=user.pk).exists():
        return
    team.members.add(user)
    name = user.get_username()
    record_change(f"{name} joined team {team.name}", name=name, actor=actor, now=now, team=team.name)


@atomic_retry
def team_member_remove(*, team: Team, user: User, actor: Actor, now: datetime) -> None:
    """Take an account out of a team. Raises NotAllowed, NotFound."""
    actor.require_admin()
    _lock(team)
    name = user.get_username()
    if not team.members.filter(pk=user.pk).exists():
        raise NotFound(f"{name} is not in team {team.name}")
    team.members.remove(user)
    record_change(f"{name} left team {team.name}", name=name, actor=actor, now=now, team=team.name)


@atomic_retry
def team_set(
    *, team: Team, namespaces: Iterable[str] | None, members: Iterable[User] | None, actor: Actor, now: datetime
) -> None:
    """Give the team these namespaces and members and no others; None leaves them.

    Raises NotAllowed, BadInput, NotFound.
    """
    actor.require_admin()
    _lock(team)
    if namespaces is not None:
        wanted = {_namespace(namespace) for namespace in namespaces}
        owned = set(team.namespaces.values_list("namespace", flat=True))
        for namespace in sorted(wanted - owned):
            team_namespace_add(team=team, namespace=namespace, actor=actor, now=now)
        for namespace in sorted(owned - wanted):
            team_namespace_remove(team=team, namespace=namespace, actor=actor, now=now)
    if members is not None:
        by_name = {user.get_username(): user for user in members}
        there = {user.get_username(): user for user in team.members.all()}
        for name in sorted(by_name.keys() - there.keys()):
            team_member_add(team=team, user=by_name[name], actor=actor, now=now)
        for name in sorted(there.keys() - by_name.keys()):
            team_member_remove(team=team, user=there[name], actor=actor, now=now)


def _lock(team: Team) -> None:
    """Lock the team's row: of two who say what the team has the later one counts. Raises NotFound."""
    if not Team.objects.select_for_update(no_key=True).filter(pk=team.pk):
        raise NotFound(f"there is no team {team.name} any more")


def _namespace(name: str) -> str:
    try:
        return check_namespace(name)
    except InvalidName as error:
        raise BadInput(f"{name[:100]}: {error}", field="namespace", rule=error.rule) from error
