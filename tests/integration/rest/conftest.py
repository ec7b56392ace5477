"""People of every role, and a client that speaks JSON for each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.test import Client

from access import tokens
from access.actors import Actor
from access.choices import Role, TokenScope
from access.models import Profile, Team, TeamNamespace
from access.selectors import actor_of

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
PASSWORD = "a long and quiet river"


@dataclass
class Api:
    """One person's client. Every call answers (status, JSON)."""

    user: User | None
    token: str

    @property
    def actor(self) -> Actor:
        assert self.user is not None
        return actor_of(self.user)

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def call(self, method, path, body=None, *, headers=None, content_type="application/json", raw=None):
        response = self.send(method, path, body, headers=headers, content_type=content_type, raw=raw)
        if not response.content:
            return response.status_code, None
        assert response["Content-Type"] == (
            "application/problem+json" if response.status_code >= 400 else "application/json"
        )
        return response.status_code, response.json()

    def send(self, method, path, body=None, *, headers=None, content_type="application/json", raw=None):
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        url = path if path.startswith(("/", "http")) else f"/api/v1/{path}"
        return Client().generic(
            method, url, data=data, content_type=content_type, headers={**self.headers, **(headers or {})}
        )

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body=None, **more):
        return self.call("POST", path, body, **more)

    def put(self, path, body=None, **more):
        return self.call("PUT", path, body, **more)

    def patch(self, path, body=None, **more):
        return self.call("PATCH", path, body, **more)

    def delete(self, path, **more):
        return self.call("DELETE", path, **more)


def person(name: str, role: Role, *, scope: TokenScope = TokenScope.REST, namespace: str = "", node: str = "") -> Api:
    """Somebody's client; of another scope, a machine's."""
    user = User.objects.create(username=name)
    machine = scope != TokenScope.REST
    Profile.objects.create(user=user, role=role, service=machine, scope=scope, node=node)
    if namespace:
        team, _ = Team.objects.get_or_create(name=namespace)
        TeamNamespace.objects.get_or_create(team=team, namespace=namespace)
        team.members.add(user)
    return Api(user=user, token=tokens.issue(user))


@pytest.fixture(autouse=True)
def _no_answers_of_other_tests():
    tokens.forget()
    yield
    tokens.forget()


@pytest.fixture
def admin(db):
    return person("ada", Role.ADMIN)


@pytest.fixture
def registrar(db):
    """A machine that may put inventories."""
    return person("registrar", Role.VIEWER, scope=TokenScope.INVENTORY)


@pytest.fixture
def operator(db):
    """Of team-a."""
    return person("olga", Role.OPERATOR, namespace="team-a")


@pytest.fixture
def viewer(db):
    """Of team-a."""
    return person("vera", Role.VIEWER, namespace="team-a")


@pytest.fixture
def outsider(db):
    """An operator of team-b."""
    return person("otto", Role.OPERATOR, namespace="team-b")


@pytest.fixture
def anonymous(db):
    return Api(user=None, token="")


def inventory(name="n1", gpus=2, **changes):
    """A node's inventory by PUT."""
    return {
        "name": name,
        "labels": {"zone": "a"},
        "mode": "exclusive",
        "devices": [
            {
                "minor": minor,
                "type": "gpu",
                "uuid": f"GPU-{name}-{minor}",
                "model": "H100",
                "memory": "80Gi",
                "numa": 0,
                "pcie": "0000:09",
                "healthy": True,
            }
            for minor in range(gpus)
        ],
        "links": [[0, 1, 18]] if gpus > 1 else [],
        **changes,
    }


def claim_manifest(name="train", namespace="team-a", **devices):
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"count": 1, **devices}},
    }
