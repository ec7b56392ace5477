"""Rows for tests of pages, REST and collectors. The engine's fleets come from tests/builders.py.

`NodeFactory(gpus=8)` is a ready node with 8 linked GPUs; `UserFactory(role=Role.OPERATOR,
namespaces=["research"])` an account that may sign in with `PASSWORD`. Allocations have no factory: the ledger is their
only writer, tests included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import factory
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from factory.django import DjangoModelFactory
from knox.models import AuthToken, get_digest_token

from access.choices import Role, TokenScope
from access.models import Profile, Team, TeamNamespace
from access.sessions import SessionStore
from claims.models import GpuClaim
from nodes import revisions
from nodes.models import Device, Node

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
"""When everything here was made, so that tests step forward from a known time."""
PASSWORD = "correct-horse-battery"
H100_BYTES = 80 * 2**30


class NodeFactory(DjangoModelFactory[Node]):
    """A ready node; `gpus=n` gives it n H100 in one NVLink island."""

    class Meta:
        model = Node
        skip_postgeneration_save = True

    name = factory.Sequence(lambda n: f"node-{n}")
    registered_at = LONG_AGO
    changed_at = LONG_AGO

    @factory.post_generation
    def gpus(self: Node, create: bool, count: int | None, **_: Any) -> None:
        """The devices and their links."""
        if not create or not count:
            return
        self.links = [[low, high, 18] for low in range(count) for high in range(low + 1, count)]
        self.save(update_fields=["links"])
        for minor in range(count):
            DeviceFactory(node=self, minor=minor, island=0)


class DeviceFactory(DjangoModelFactory[Device]):
    """A healthy, free H100, stamped so that the picture in memory sees it."""

    class Meta:
        model = Device

    node = factory.SubFactory(NodeFactory)
    type = "gpu"
    minor = factory.Sequence(lambda n: n)
    uuid = factory.LazyAttribute(lambda device: f"GPU-{device.node.name}-{device.minor}")
    model = "H100"
    memory_bytes = H100_BYTES
    revision = factory.LazyFunction(revisions.next_revision)
    changed_at = LONG_AGO


class GpuClaimFactory(DjangoModelFactory[GpuClaim]):
    """A claim for one whole GPU."""

    class Meta:
        model = GpuClaim

    namespace = "research"
    name = factory.Sequence(lambda n: f"claim-{n}")
    spec = factory.LazyFunction(lambda: {"devices": {"count": 1}})
    created_at = LONG_AGO
    changed_at = LONG_AGO


class TeamFactory(DjangoModelFactory[Team]):
    """A team without members or namespaces."""

    class Meta:
        model = Team

    name = factory.Sequence(lambda n: f"team-{n}")


def agent_tokens(nodes: Sequence[str]) -> dict[str, str]:
    """Node → token of its agent, for thousands of them."""
    users = User.objects.bulk_create(User(username=f"agent@{node}", password="!") for node in nodes)
    Profile.objects.bulk_create(
        Profile(user=user, service=True, scope=TokenScope.AGENT, node=node)
        for user, node in zip(users, nodes, strict=True)
    )
    made = [get_digest_token() for _ in nodes]
    AuthToken.objects.bulk_create(
        AuthToken(user=user, digest=digest, token_key=token[:15])
        for user, (digest, token) in zip(users, made, strict=True)
    )
    return {node: token for node, (_, token) in zip(nodes, made, strict=True)}


class UserFactory(DjangoModelFactory[User]):
    """An account: a viewer unless `role` says more, in a team of its own for `namespaces`; a machine's by `scope`, an
    agent's with `node`.
    """

    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda n: f"user-{n}")

    @classmethod
    def _create(
        cls,
        model_class: type[User],
        *args: Any,
        role: Role = Role.VIEWER,
        service: bool = False,
        scope: TokenScope = TokenScope.REST,
        node: str = "",
        **kwargs: Any,
    ) -> User:
        user = model_class.objects.create_user(password=PASSWORD, **kwargs)
        machine = service or scope != TokenScope.REST
        Profile.objects.create(user=user, role=role, service=machine, scope=scope, node=node)
        return user

    @factory.post_generation
    def namespaces(self: User, create: bool, names: Iterable[str] | None, **_: Any) -> None:
        """A team that owns the namespaces."""
        if create and names:
            team = TeamFactory()
            team.members.add(self)
            TeamNamespace.objects.bulk_create(TeamNamespace(team=team, namespace=name) for name in names)


def session_of(user: User) -> SessionStore:
    """A stored session, as signing in makes it."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return store
