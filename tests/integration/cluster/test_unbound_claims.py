"""How long a hold lasts, by what the API server says of the pod's volume and resource claims."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from allocations.models import Allocation
from allocations.scheduling import hold_duration
from storage.clock import database_now
from tests.fakes.apikinds import RESOURCE_CLAIMS, STORAGE_CLASSES, VOLUME_CLAIMS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World

SHORT, LONG = "short", "long"
BOUND = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hold_duration, "READER", hold_duration.Reader(clock))
    return clock


@pytest.fixture
def stored(world: World, clock: Clock) -> World:
    """A node, the claim, and classes of both binding modes."""
    world.node("n1", gpus=8)
    world.claim()
    for name, mode in (("late", "WaitForFirstConsumer"), ("early", "Immediate")):
        body = {"metadata": {"name": name}, "provisioner": "x", "volumeBindingMode": mode}
        world.server.store.create(STORAGE_CLASSES, "", body)
    volume_claim(world, "bound-late", "late", bound=True)
    volume_claim(world, "unbound-late", "late")
    volume_claim(world, "unbound-early", "early")
    volume_claim(world, "unbound-none", "")
    volume_claim(world, "unbound-lost", "nobody-knows")
    volume_claim(world, "p-scratch", "late")
    volume_claim(world, "p-ready", "late", bound=True)
    claims: tuple[tuple[str, dict[str, Any]], ...] = (("taken", {"allocation": {"devices": {}}}), ("open", {}))
    for name, status in claims:
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {}, "status": status}
        world.server.store.create(RESOURCE_CLAIMS, NAMESPACE, body)
    return world


def volume_claim(world: World, name: str, storage_class: str, *, bound: bool = False) -> None:
    meta: dict[str, Any] = {"name": name, "namespace": NAMESPACE} | (BOUND if bound else {})
    spec = {"storageClassName": storage_class} | ({"volumeName": f"pv-{name}"} if bound else {})
    world.server.store.create(VOLUME_CLAIMS, NAMESPACE, {"metadata": meta, "spec": spec})


def bind_volume(world: World, name: str) -> None:
    body = {"metadata": BOUND, "spec": {"volumeName": f"pv-{name}"}}
    world.server.store.patch(VOLUME_CLAIMS, NAMESPACE, name, body, content_type="application/merge-patch+json")


def volumes(*names: str) -> dict[str, Any]:
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}


def ephemeral(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": name, "ephemeral": {"volumeClaimTemplate": {}}}]}


def held_for(world: World, name: str = "p") -> str:
    row = Allocation.objects.get(pod_name=name, state="held")
    assert row.hold_until is not None
    seconds = (row.hold_until - row.changed_at).total_seconds()
    return {30.0: SHORT, 660.0: LONG}[seconds]


def reads(world: World, since: int) -> list[str]:
    """What was read of the API server for the hold."""
    words = ("persistentvolumeclaims", "storageclasses", "resourceclaims")
    paths = [seen.path for seen in world.server.requests[since:]]
    return [
        path.rpartition("/v1/")[2].removeprefix(f"namespaces/{NAMESPACE}/")
        for path in paths
        if any(word in path for word in words)
    ]


@pytest.mark.parametrize(
    ("spec", "want", "want_reads"),
    [
        pytest.param({}, SHORT, [], id="no claims: nothing is read"),
        pytest.param({"volumes": [{"name": "tmp", "emptyDir": {}}]}, SHORT, [], id="a volume without a claim"),
        pytest.param(volumes("bound-late"), SHORT, ["persistentvolumeclaims/bound-late"], id="bound"),
        pytest.param(
            volumes("unbound-late"),
            LONG,
            ["persistentvolumeclaims/unbound-late", "storageclasses"],
            id="its class waits for the pod",
        ),
        pytest.param(
            volumes("unbound-early"),
            SHORT,
            ["persistentvolumeclaims/unbound-early", "storageclasses"],
            id="its class binds at once",
        ),
        pytest.param(volumes("unbound-none"), SHORT, ["persistentvolumeclaims/unbound-none"], id="no class"),
        pytest.param(
            volumes("unbound-lost"),
            LONG,
            ["persistentvolumeclaims/unbound-lost", "storageclasses"],
            id="a class nobody knows",
        ),
        pytest.param(volumes("missing"), LONG, ["persistentvolumeclaims/missing"], id="a claim that is not there"),
        pytest.param(
            volumes("bound-late", "p-ready"), SHORT, ["persistentvolumeclaims"], id="several, all bound: one read"
        ),
        pytest.param(
            volumes("bound-late", "unbound-late"),
            LONG,
            ["persistentvolumeclaims", "storageclasses"],
            id="several, one unbound",
        ),
        pytest.param(
            ephemeral("scratch"), LONG, ["persistentvolumeclaims/p-scratch", "storageclasses"], id="ephemeral, unbound"
        ),
        pytest.param(ephemeral("ready"), SHORT, ["persistentvolumeclaims/p-ready"], id="ephemeral, bound"),
        pytest.param(
            {"resourceClaims": [{"name": "nic", "resourceClaimName": "taken"}]},
            SHORT,
            ["resourceclaims/taken"],
            id="allocated",
        ),
        pytest.param(
            {"resourceClaims": [{"name": "nic", "resourceClaimName": "open"}]},
            LONG,
            ["resourceclaims/open"],
            id="not allocated",
        ),
        pytest.param(
            {"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "t"}]}, LONG, [], id="not made yet"
        ),
    ],
)
def test_how_long_a_hold_lasts(stored: World, spec: dict[str, Any], want: str, want_reads: list[str]) -> None:
    """LEASE-3 as long as kube-scheduler may really wait between filter and bind, and at no cost for pods without
    claims.
    """
    stored.pod("p", spec=spec)
    since = len(stored.server.requests)
    assert stored.filter("p") == "n1"
    assert (held_for(stored), reads(stored, since)) == (want, want_reads)


def test_short_again_once_the_volume_is_bound(stored: World) -> None:
    """LEASE-3 the next filter of the same pod sees it, and the hold is not longer than what it had for that."""
    stored.pod("p", spec=volumes("unbound-late"))
    assert stored.filter("p") == "n1"
    assert held_for(stored) == LONG
    bind_volume(stored, "unbound-late")
    assert stored.filter("p") == "n1"
    assert held_for(stored) == SHORT
    assert stored.states("p") == ["held"]


@pytest.mark.parametrize("spec", [volumes("unbound-late"), {}], ids=["long", "short"])
def test_how_often_it_is_prolonged(stored: World, spec: dict[str, Any]) -> None:
    """LEASE-3 a short hold to three times its length in all; a long one not past kube-scheduler's own time-out of a
    bind.
    """
    stored.pod("p", spec=spec)
    assert stored.filter("p") == "n1"
    row = Allocation.objects.get(pod_name="p")
    assert row.hold_until is not None
    limit = timedelta(seconds=660 if spec else 90)
    made = database_now() - limit + timedelta(seconds=5)  # nearly all of its time is over
    Allocation.objects.update(created_at=made, hold_until=made + limit)
    assert stored.filter("p") == "n1"
    row.refresh_from_db()
    assert row.hold_until is not None
    assert row.hold_until == made + limit
    assert stored.states("p") == ["held"]


def test_an_api_server_that_does_not_answer(stored: World, clock: Clock) -> None:
    """LEASE-3 what is not known may be unbound; the next filters do not wait for it again, and later ones ask."""
    stored.server.faults.append(Fault("GET", r"persistentvolumeclaims", status=503, times=99))
    for name in ("p", "q"):
        stored.pod(name, spec=volumes("bound-late"))
    since = len(stored.server.requests)
    assert stored.filter("p") == "n1"
    assert stored.filter("q") == "n1"
    assert (held_for(stored), held_for(stored, "q")) == (LONG, LONG)
    assert len(reads(stored, since)) == 1
    stored.server.faults.clear()
    clock.now += hold_duration.QUIET_SECONDS + 1
    stored.pod("r", spec=volumes("bound-late"))
    assert stored.filter("r") == "n1"
    assert held_for(stored, "r") == SHORT


def test_what_is_bound_stays_bound(stored: World, clock: Clock) -> None:
    """A pod that is filtered again, and those that share its volume, cost no further read for a while."""
    for name in ("p", "q"):
        stored.pod(name, spec=volumes("bound-late"))
    since = len(stored.server.requests)
    for name in ("p", "q", "p"):
        assert stored.filter(name) == "n1"
    assert reads(stored, since) == ["persistentvolumeclaims/bound-late"]
    clock.now += hold_duration.BOUND_SECONDS + 1
    assert stored.filter("q") == "n1"
    assert len(reads(stored, since)) == 2


def test_a_pod_that_finds_no_devices(stored: World, settings: Settings) -> None:
    """Nothing is read for a pod that is refused."""
    stored.claim("nine", count=9)
    stored.pod("p", claim="nine", spec=volumes("unbound-late"))
    since = len(stored.server.requests)
    assert stored.filter("p") is None
    assert reads(stored, since) == []
