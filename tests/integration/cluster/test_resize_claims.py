"""Edited claims with `spec.resize`: their live shares follow, on a stand-in cluster."""

from __future__ import annotations

from typing import Any

import pytest

from access.actors import SYSTEM
from access.errors import Conflict
from allocations.models import Allocation
from allocations.scheduling.resizing import resize_claims
from allocations.services import allocation_resize
from claims.kinds import CLAIM
from claims.mirror import refresh
from claims.models import GpuClaim
from storage.clock import database_now
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.resizing import GI, granted, told, used


@pytest.fixture
def there(world: World) -> World:
    """One node of a single GPU."""
    world.node("n1", gpus=1)
    world.server.add_namespace("gpuplane-system")
    return world


def claimed(world: World, *names: str, resize: bool = True, **devices: Any) -> None:
    """Pods that run with shares of the claim."""
    spec = {"devices": {"count": 1, **devices}, "resize": resize}
    world.server.add_gpuclaim("share", spec, namespace=NAMESPACE)
    for name in names:
        world.place(name, claim="share")


def edit(world: World, **spec: Any) -> None:
    """Edit the claim at the API server; the watch brings it."""
    kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
    world.server.store.patch(kind, NAMESPACE, "share", {"spec": spec}, content_type=MERGE)
    cluster = world.backends.cluster
    assert cluster is not None
    refresh(CLAIM, cluster, namespace=NAMESPACE, name="share", now=database_now())


def turn(world: World) -> int:
    return resize_claims(backends=world.backends, now=database_now())


def condition() -> tuple[str, str] | None:
    found = [one for one in GpuClaim.objects.get().conditions if one["type"] == "Resized"]
    return (found[0]["status"], found[0]["message"]) if found else None


def test_an_edited_claim(there: World) -> None:
    """SHARE-6b every live share of the claim follows, each by itself."""
    claimed(there, "a", "b", core=20, memory="8Gi")
    assert turn(there) == 0
    edit(there, devices={"core": 40, "memory": "10Gi"})
    assert turn(there) == 2
    assert used() == [(80, 20 * GI)]
    assert told(there, "a") == told(there, "b") == [(40, 10 * GI)]
    assert turn(there) == 0
    edit(there, devices={"memory": None, "memoryRatio": 10})
    assert turn(there) == 2
    assert granted("a") == granted("b") == [(40, 8 * GI)]
    edit(there, devices={"memoryRatio": None})
    assert turn(there) == 2
    assert granted("a") == [(40, 0)]
    assert turn(there) == 0
    assert condition() is None
    assert len(there.told("allocation.resized")) == 6


def test_an_edited_claim_that_does_not_say_so(there: World) -> None:
    """SHARE-6b without `resize` running pods keep what they were given, as ever."""
    claimed(there, "a", resize=False, core=20, memory="8Gi")
    edit(there, devices={"core": 40})
    assert turn(there) == 0
    assert used() == [(20, 8 * GI)]


@pytest.mark.parametrize(
    ("devices", "want"),
    [
        pytest.param({"core": 60}, "b: gpu 0 has 20 core and 64Gi free; the share needs 40 core", id="no room"),
        pytest.param({"count": 2}, "number and the type", id="another count"),
        pytest.param({"core": None, "memory": None}, "cannot become whole devices", id="whole devices"),
    ],
)
def test_what_an_edited_claim_cannot_have(there: World, devices: dict[str, Any], want: str) -> None:
    """SHARE-6b a share that is refused keeps what it has; claim and event say why, once; it is tried again."""
    claimed(there, "a", "b", core=20, memory="8Gi")
    edit(there, devices=devices)
    turn(there)
    found = condition()
    assert found is not None
    assert found[0] == "False"
    assert want in found[1]
    assert granted("b") == [(20, 8 * GI)]
    turn(there)
    assert condition() == found
    assert len(there.told("allocation.resize-refused")) == 1
    if devices.get("core"):
        there.remove("a")
        there.reconcile()
        assert turn(there) == 1
        assert granted("b") == [(60, 8 * GI)]
        assert condition() == ("True", "")


def test_a_share_that_follows_its_claim(there: World) -> None:
    """SHARE-6b such a share is resized by editing the claim alone: the next turn would undo anything else."""
    claimed(there, "a", core=20, memory="8Gi")
    there.claim("other", count=1, core=10, memory="1Gi")
    edit(there)
    allocation = Allocation.objects.get(pod_name="a")
    with pytest.raises(Conflict, match="edit the claim"):
        allocation_resize(allocation=allocation, actor=SYSTEM, core=30, memory=None, now=database_now())
    assert used() == [(20, 8 * GI)]
