"""What people read of devices that nobody new gets."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from access.choices import Role
from nodes.models import Device, Node
from nodes.revisions import next_revision
from tests.factories import NodeFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]
WHY = "pod secret/theirs runs with MIG-1, which n1 does not have"


@pytest.fixture
def node(ledger_db: Any) -> Node:
    """The first GPU is closed, the second in MIG mode with an instance, which is held."""
    made = NodeFactory(name="n1", gpus=2)
    Device.objects.filter(minor=0).update(closed=WHY, revision=next_revision())
    Device.objects.filter(minor=1).update(mig=True, revision=next_revision())
    gpu = Device.objects.get(minor=1)
    Device.objects.create(
        node=made, type="gpu", minor=1128, uuid="MIG-b", model="H100 MIG 1g.10gb", memory_bytes=2**33, core_used=100,
        memory_used=2**33, parent=gpu.uuid, profile="1g.10gb", revision=next_revision(), changed_at=gpu.changed_at,
    )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("role", "namespaces", "want"),
    [
        pytest.param(Role.ADMIN, (), WHY, id="who sees everything"),
        pytest.param(
            Role.VIEWER, ("research",), "a running pod has it, or may", id="who does not see the pod's namespace"
        ),
    ],
)
def test_why_is_reported_as_far_as_one_may_know(
    client: Client, node: Node, role: Role, namespaces: tuple[str, ...], want: str
) -> None:
    """DEV-12 on the pages of node and device, in the map's card, and over REST; names of pods to those alone who see
    them.
    """
    client.force_login(UserFactory(role=role, namespaces=namespaces))
    closed, gpu, instance = Device.objects.order_by("minor")
    pages = [f"/nodes/{node.name}/", f"/devices/{closed.pk}/", f"/devices/{closed.pk}/state/"]
    for path in pages:
        text = client.get(path).content.decode()
        assert want in text, path
        assert (WHY in text) is (want == WHY), path
    assert "in MIG mode" in client.get(f"/devices/{gpu.pk}/").content.decode()
    assert "MIG 1g.10gb" in client.get(f"/nodes/{node.name}/").content.decode()
    assert client.get(f"/devices/{instance.pk}/").status_code == 200
    rows = {row["minor"]: row for row in client.get("/api/v1/nodes/n1/").json()["inventory"]}
    assert want in rows[0]["closed"]
    assert (rows[1]["mig"], rows[1]["parent"], rows[1128]["parent"], rows[1128]["profile"]) == (
        True,
        None,
        gpu.uuid,
        "1g.10gb",
    )
    assert "2 / 2" in client.get("/nodes/").content.decode()
