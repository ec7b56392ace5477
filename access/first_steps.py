"""What a new installation lacks before a company can use it: an admin of its own, a team with namespaces, its people.

Read by the page of first steps and by the page of the fleet, for admins.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User

from access.actors import Actor
from access.models import FirstAccount, Team, TeamNamespace
from access.services import ADMINS


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Which of the three are done."""

    own_admin: bool
    team: bool
    people: bool

    @property
    def done(self) -> int:
        """How many."""
        return self.own_admin + self.team + self.people


def first_steps(*, actor: Actor) -> FirstSteps:
    """As of now. Raises NotAllowed.

    `own_admin`: a person is an admin, besides the account that the installation made. `people`: a person is in a team.
    """
    actor.require_admin()
    people = User.objects.filter(is_active=True).exclude(profile__service=True)
    made_here = FirstAccount.objects.values("username")
    return FirstSteps(
        own_admin=people.filter(ADMINS).exclude(username__in=made_here).exists(),
        team=TeamNamespace.objects.exists(),
        people=Team.members.through.objects.filter(user__in=people).exists(),
    )
