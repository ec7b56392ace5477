"""What kubelets gave away, kept as their agents last said it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from access.actors import SYSTEM, Actor
from access.choices import Role
from access.errors import NotAllowed, NotFound
from nodes.checkpoints import CheckpointGrant, checkpoint_put, grants_by_kubelets
from nodes.models import KubeletCheckpoint
from tests.factories import LONG_AGO, NodeFactory

ONE = CheckpointGrant("pod-1", "main", "nvidia.com/gpu", ("GPU-1", "GPU-2"))
OTHER = CheckpointGrant("pod-1", "beside", "nvidia.com/gpu", ("GPU-3",))


def put(*entries: CheckpointGrant, node: str = "n1", actor: Actor = SYSTEM, later: int = 0) -> bool:
    return checkpoint_put(node_name=node, entries=entries, actor=actor, now=LONG_AGO + timedelta(seconds=later))


@pytest.mark.django_db
def test_the_newest_word_replaces_all_others() -> None:
    """DEV-8 (part) per node; the same again changes nothing."""
    NodeFactory(name="n1")
    NodeFactory(name="n2")
    assert put(ONE, OTHER)
    assert put(CheckpointGrant("pod-2", "main", "nvidia.com/gpu", ("GPU-9",)), node="n2")
    assert grants_by_kubelets(nodes=["n1"]) == {("n1", "pod-1"): [ONE, OTHER]}
    assert set(grants_by_kubelets()) == {("n1", "pod-1"), ("n2", "pod-2")}
    assert not put(ONE, OTHER, later=5)
    assert KubeletCheckpoint.objects.get(node__name="n1").read_at == LONG_AGO
    assert put(later=9)
    assert grants_by_kubelets(nodes=["n1"]) == {}
    assert KubeletCheckpoint.objects.get(node__name="n1").read_at == LONG_AGO + timedelta(seconds=9)


@pytest.mark.django_db
def test_who_may_say_so() -> None:
    """DEV-8 (part) of a node that exists, and by nobody but an agent."""
    NodeFactory(name="n1")
    with pytest.raises(NotFound, match="no node n9"):
        put(ONE, node="n9")
    with pytest.raises(NotAllowed):
        put(ONE, actor=Actor(name="eve", role=Role.OPERATOR))
    assert grants_by_kubelets() == {}
