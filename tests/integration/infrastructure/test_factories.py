"""Rows that the factories make keep every constraint and mean what they say."""

import pytest
from django.test import Client

from access.choices import Role
from access.selectors import actor_of
from allocations import fleet
from tests.factories import PASSWORD, GpuClaimFactory, NodeFactory, UserFactory

pytestmark = pytest.mark.django_db


def test_a_node_with_gpus_is_in_the_snapshot() -> None:
    node = NodeFactory(gpus=4)
    picture = fleet.current().snapshot
    assert picture.node_names == (node.name,)
    assert len(picture.device_id) == 4


def test_a_user_acts_in_the_namespaces_given() -> None:
    user = UserFactory(role=Role.OPERATOR, namespaces=["research", "vision"])
    actor = actor_of(user)
    assert actor.role == Role.OPERATOR
    assert actor.namespaces == frozenset({"research", "vision"})
    assert Client().login(username=user.username, password=PASSWORD)


def test_claims_are_numbered() -> None:
    assert GpuClaimFactory().name != GpuClaimFactory().name
