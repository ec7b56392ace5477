"""Teams changed while others change or delete them, or their members, on real connections of both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User

from access.actors import SYSTEM
from access.choices import Role
from access.errors import Conflict, NotFound
from access.models import Team
from access.services import user_create, user_teams_set
from access.team_services import team_create, team_member_add, team_namespace_add, team_set
from audit.models import Event
from tests.databases import TestDatabase
from tests.factories import TeamFactory, UserFactory

BY: dict[str, Any] = {"actor": SYSTEM, "now": datetime(2026, 11, 21, tzinfo=UTC)}
OF_A_TEAM: dict[str, Callable[[Team, User], object]] = {
    "a namespace": lambda team, _: team_namespace_add(team=team, namespace="a", **BY),
    "a member": lambda team, user: team_member_add(team=team, user=user, **BY),
    "both": lambda team, user: team_set(team=team, namespaces=["a"], members=[user], **BY),
    "nothing": lambda team, _: team_set(team=team, namespaces=None, members=None, **BY),
}
OF_AN_ACCOUNT: dict[str, Callable[[Team, User], object]] = {
    "a new one": lambda team, _: user_create(username="new", password=None, role=Role.VIEWER, teams=[team], **BY),
    "one there": lambda team, user: user_teams_set(user=user, teams=[team], **BY),
}


@pytest.mark.parametrize("change", OF_A_TEAM.values(), ids=OF_A_TEAM)
def test_a_team_that_was_deleted_meanwhile(ledger_db: TestDatabase, change: Callable[[Team, User], object]) -> None:
    """VIEW-6 who changes it is told so, and no event says otherwise; it is no fault."""
    team, user = TeamFactory(), UserFactory()
    Team.objects.all().delete()
    with pytest.raises(NotFound, match="any more"):
        change(team, user)
    assert not Event.objects.exists()


@pytest.mark.parametrize("change", OF_AN_ACCOUNT.values(), ids=OF_AN_ACCOUNT)
def test_an_account_gets_a_team_that_was_deleted_meanwhile(
    ledger_db: TestDatabase, change: Callable[[Team, User], object]
) -> None:
    """VIEW-6 who gives it is told so, and nothing is changed; it is no fault."""
    team, user = TeamFactory(), UserFactory()
    Team.objects.all().delete()
    with pytest.raises(Conflict, match="there is no team"):
        change(team, user)
    assert User.objects.get() == user
    assert not Event.objects.exists()


def test_a_member_that_was_deleted_meanwhile(ledger_db: TestDatabase) -> None:
    """VIEW-6 who adds them is told so; it is no fault."""
    team, user = TeamFactory(), UserFactory()
    User.objects.all().delete()
    with pytest.raises(NotFound, match="any more"):
        team_member_add(team=team, user=user, **BY)
    assert not Event.objects.exists()


def test_of_two_who_say_what_a_team_has_one_counts(ledger_db: TestDatabase) -> None:
    """VIEW-6 each gives the team these namespaces and members and no others: it never gets those of both."""
    users = [UserFactory() for _ in range(4)]
    for number in range(5):
        team = team_create(name=f"t{number}", **BY)
        ledger_db.race(
            [partial(team_set, team=team, namespaces=[f"n{user.pk}"], members=[user], **BY) for user in users]
        )
        (member,) = team.members.all()
        assert [one.namespace for one in team.namespaces.all()] == [f"n{member.pk}"]
