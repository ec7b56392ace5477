"""New devices with a cluster: nobody gets one before the pods that may run with it already are known."""

from __future__ import annotations

from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.models import Allocation
from allocations.reconcile import run, unverified, verify_devices
from allocations.tasks import read_newcomers as task
from kube.errors import KubeError
from kube.keys import CAPACITY_CHANGED
from nodes.inventory import parse_node
from nodes.models import Device
from nodes.services import inventory_put
from nodes.unverified_devices import TASK, UNREAD
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World

GIB = 2**30
SHARE = {"gpu.scheduling/claim": "share"}


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tasks that were sent: there is no worker here."""
    names: list[str] = []
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda name, *_, **__: names.append(name))
    return names


def tell(world: World, name: str, *, gpus: int) -> None:
    """The node's inventory, as an agent tells it."""
    if name not in world.server.nodes:
        world.server.add_node(name)
    devices: list[dict[str, Any]] = [
        {"minor": minor, "uuid": f"GPU-{name}-{minor}", "model": "H100", "memory": "80Gi"} for minor in range(gpus)
    ]
    inventory_put(shape=parse_node({"name": name, "devices": devices}), actor=SYSTEM, now=database_now())


def runs(world: World, name: str, *, core: int, gib: int) -> None:
    """A pod that was placed by an installation whose ledger is lost."""
    resources = f'{{"kubernetes.io/gpu-core":"{core}","kubernetes.io/gpu-memory":"{gib}Gi"}}'
    amounts = f'{{"gpu":[{{"minor":0,"resources":{resources}}}]}}'
    results = {"gpu.scheduling/allocated": "n1:0", "gpu.scheduling/amounts": amounts}
    world.server.add_pod(name, namespace=NAMESPACE, node="n1", phase="Running", annotations={**SHARE, **results})


def closed() -> list[int]:
    """Minors of devices that nobody gets."""
    return list(Device.objects.filter(stranger=UNREAD).order_by("minor").values_list("minor", flat=True))


def read(world: World) -> int:
    return verify_devices(backends=world.backends, now=database_now())


def test_a_new_node_is_opened_once_its_pods_were_read(world: World, sent: list[str]) -> None:
    """LEASE-6 the inventory sends for the reading; until that was done nothing is placed there, then whoever waits is
    told.
    """
    world.claim("one", count=1)
    world.pod("waits", claim="one")
    tell(world, "n1", gpus=2)
    assert sent.count(TASK) == 1
    assert closed() == [0, 1]
    assert world.filter("waits") is None
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED]

    task()

    assert closed() == []
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before
    assert world.filter("waits") == "n1"
    tell(world, "n1", gpus=2)
    assert sent.count(TASK) == 1


def test_a_share_is_not_put_beside_one_that_nobody_knows_yet(world: World) -> None:
    """LEASE-2 LEASE-6 60 percent run there: another 60 never get in, 40 do."""
    world.claim("share", count=1, core=60, memory="50Gi")
    world.claim("small", count=1, core=40, memory="30Gi")
    runs(world, "old", core=60, gib=50)
    world.pod("big", claim="share")
    world.pod("fits", claim="small")
    tell(world, "n1", gpus=1)
    assert world.filter("big") is None
    assert world.filter("fits") is None

    assert read(world) == 1

    assert world.states("old") == ["bound"]
    assert list(world.leases()) == ["gpu-n1-0"]
    assert world.used("n1") == [60]
    assert world.filter("big") is None
    assert world.filter("fits") == "n1"
    assert world.bind("fits", "n1") == ""
    assert Allocation.objects.get(pod_name="old").confined is False


def test_a_cluster_that_does_not_answer_opens_nothing(world: World) -> None:
    """LEASE-6 what may run there is not known: comparing opens the devices once it is."""
    tell(world, "n1", gpus=2)
    world.server.stop()
    with pytest.raises(KubeError):
        read(world)
    assert "does not answer" in world.reconcile().problem
    task()  # says so in its log
    assert closed() == [0, 1]
    world.server.start()

    assert world.reconcile().opened == 2

    assert closed() == []


def test_only_what_is_new_is_closed(world: World) -> None:
    """LEASE-6 devices added to a node later, and those that come back: pods may have run with them since an earlier
    loss.
    """
    world.claim("one", count=1)
    tell(world, "n1", gpus=1)
    read(world)
    world.place("holder", claim="one")
    tell(world, "n1", gpus=3)
    assert closed() == [1, 2]
    read(world)
    tell(world, "n1", gpus=0)  # the held one is only missing, its row and its holder stay
    tell(world, "n1", gpus=3)
    assert closed() == [1, 2]
    assert Device.objects.get(minor=0, presence="present").stranger == ""
    assert world.states("holder") == ["bound"]


def test_what_comes_after_the_look_is_not_opened_by_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-6 a node registered while a comparison is under way was not seen by it."""
    look = run._look

    def look_and_register(cluster: Any) -> Any:
        seen = look(cluster)
        tell(world, "n1", gpus=1)
        return seen

    monkeypatch.setattr(run, "_look", look_and_register)
    assert world.reconcile().opened == 0
    monkeypatch.setattr(run, "_look", look)
    assert closed() == [0]
    assert list(unverified()) == ["n1"]
    assert world.reconcile().opened == 1
