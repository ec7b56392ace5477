"""Slots on a node whose kubelet chooses GPUs: a reservation pod keeps the slot's GPU, which may be another than was
planned; the rounds do not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from allocations.choices import LIVE
from allocations.models import Allocation, GpuGroup
from inference import loop
from inference.choices import State
from inference.models import Model, Slot
from inference.rounds import memory
from inference.rounds.run import Rounds
from inference.rounds.slow_binds import SlowBinds
from tests.fakes.kubelet import RESERVATIONS, Kubelets
from tests.integration.cluster.comparing import differences
from tests.integration.cluster.reservation_pods.conftest import PLUGIN
from tests.integration.cluster.slots.conftest import SlotsInCluster
from tests.slots import GI, problems


@pytest.fixture
def kubelets(slots: SlotsInCluster, settings: Any) -> Iterator[Kubelets]:
    """n1 has four GPUs that its kubelet hands out, and a runner."""
    settings.GPUPLANE_RESERVATION_IMAGE = "gpuplane-agent:test"
    settings.GPUPLANE_RESERVATION_SECONDS = 5
    slots.cluster.server.add_namespace(RESERVATIONS)
    slots.cluster.node("n1", gpus=4, labels=PLUGIN)
    slots.cluster.reconcile()
    slots.runner("n1")
    with Kubelets(slots.cluster.server, {"n1": [f"GPU-n1-{minor}" for minor in range(4)]}) as kubelets:
        yield kubelets


def test_the_kubelet_chooses(slots: SlotsInCluster, kubelets: Kubelets) -> None:
    """SLOT-1b SHARE-5 the slot has the GPU that its reservation pod got, and gives it back with its model."""
    kubelets.choose("GPU-n1-2")
    slots.model(memory=20)
    slots.requests()
    slots.converge()
    slot = Slot.objects.get(state=State.READY)
    assert (slot.gpus, slot.memory) == ([2], [20 * GI])
    assert problems() == []
    assert len(kubelets.reservations()) == 1
    Model.objects.all().delete()
    slots.converge()
    slots.cluster.reconcile()
    assert slots.slots() == []
    assert not Allocation.objects.filter(state__in=LIVE).exists()
    assert not GpuGroup.objects.exclude(state="gone").exists()
    assert differences(slots.cluster.server) == []


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_rounds_do_not_wait(slots: SlotsInCluster, kubelets: Kubelets) -> None:
    """SLOT-2 a bind that waits for a kubelet is beside the rounds, once; another slot is bound meanwhile."""
    slots.model(memory=20, keep_warm=1, selector={"is": "n1"})
    slots.model("other", memory=20, keep_warm=1, selector={"is": "n2"})
    slots.runner_node("n2")
    for name in ("n1", "n2"):
        slots.label(name, {"is": name})
    held, ended = threading.Event(), threading.Event()
    begun: list[str] = []

    def bind(slot: Slot) -> None:
        begun.append(slot.pk)
        held.wait(30)
        loop.bind_slowly(slot)
        connections.close_all()
        ended.set()

    slow = SlowBinds(bind)
    rounds = Rounds(slow.begin)
    rounds.run()
    rounds.run()
    assert [slot.node for slot in slots.told()] == ["n2"], "n1's kubelet has not chosen yet"
    held.set()
    assert ended.wait(30)
    slow.close()
    assert len(begun) == 1
    assert sorted(slot.node for slot in slots.told()) == ["n1", "n2"]
    assert kubelets.reservations()


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_killed_before_the_kubelets_choice_is_noted(
    slots: SlotsInCluster, kubelets: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-2 the bind is committed; the slot says which GPU it has all the same."""
    kubelets.choose("GPU-n1-2")
    slots.model(memory=20)
    slots.requests()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(memory, "note_bound", killed)
        with pytest.raises(KeyboardInterrupt):
            slots.converge()
    slots.converge()
    assert (Slot.objects.get().gpus, problems()) == ([2], [])
