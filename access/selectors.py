"""Reads of who may do what.

Called once at each edge (REST authentication, pages, the cluster's doors) to turn a user into the
`Actor` that services take. Kept true: an account that is inactive is nobody.
"""

from __future__ import annotations

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser, User

from access.actors import Actor
from access.choices import Role
from access.errors import NotAllowed
from access.models import Profile, Team, TeamNamespace


def actor_of(user: AbstractBaseUser | AnonymousUser) -> Actor:
    """The actor a signed-in user is: at most two queries. Raises NotAllowed for anonymous or inactive users.

    Admins and service accounts see every namespace, agents of one node none, everybody else those of their teams. A superuser
    is an admin.
    """
    if not isinstance(user, User) or not user.is_active:
        raise NotAllowed("sign in first")
    try:
        profile = user.profile
    except Profile.DoesNotExist:
        profile = Profile(user=user)
    role = Role.ADMIN if user.is_superuser else Role(profile.role)
    everything = role == Role.ADMIN or (profile.service and not profile.node)
    return Actor(
        name=user.get_username(),
        role=role,
        namespaces=None if everything else namespaces_of(user),
        service=profile.service,
        node=profile.node,
    )


def namespaces_of(user: User) -> frozenset[str]:
    """Namespaces of the user's teams."""
    return frozenset(TeamNamespace.objects.filter(team__members=user).values_list("namespace", flat=True))


def team_of_namespace(user: User, actor: Actor) -> dict[str, str]:
    """Namespace → the team that owns it, first by name where several do, as far as this user may know: their own teams, or all for who sees all."""
    teams = Team.objects.all() if actor.namespaces is None else Team.objects.filter(members=user)
    owned = teams.order_by("-name").values_list("namespaces__namespace", "name")
    return {namespace: name for namespace, name in owned if namespace is not None}
