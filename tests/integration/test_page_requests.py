"""What every page takes of a request: its query whole, and HEAD."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client

from access.choices import Role
from claims.models import GpuQueue
from nodes.models import Device
from tests.factories import NodeFactory, UserFactory

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.fixture
def admin(client: Client) -> Client:
    """Signed in."""
    client.force_login(UserFactory(role=Role.ADMIN))
    return client


LONG = ".".join(letter * 60 for letter in "abcd")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param(f"/usage/queues/?queue={LONG}", LONG, id="usage of a queue"),
        pytest.param(f"/usage/queues.csv?queue={LONG}", "queue,", id="the same as CSV"),
        pytest.param(f"/nodes/?model={'M' * 120}", f'href="/nodes/{LONG}/"', id="nodes by model"),
        pytest.param(f"/allocations/?node={LONG}", f'value="{LONG}"', id="allocations of a node"),
    ],
)
def test_the_longest_names_are_looked_for_whole(admin: Client, path: str, words: str) -> None:
    """VIEW-2 a queue or node has up to 253 characters, a model 128."""
    GpuQueue.objects.create(name=LONG, spec={}, resource_version="1", created_at=NOW, changed_at=NOW)
    Device.objects.filter(node=NodeFactory(name=LONG, gpus=1)).update(model="M" * 120)
    answer = admin.get(path)
    assert answer.status_code == 200
    assert words in answer.content.decode()


@pytest.mark.parametrize("path", ["/", "/nodes/", "/claims/new/", "/tokens/", "/accounts/", "/simulate/", "/password/"])
def test_head_is_answered_as_get(admin: Client, path: str) -> None:
    """VIEW-2 with the same status and media type, and nothing is done."""
    want, answer = admin.get(path), admin.head(path)
    assert (answer.status_code, answer["Content-Type"]) == (200, want["Content-Type"])
    assert answer.content == b""
