"""Pages that show groups behind reservation pods: who sees what, and what is marked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from django.test import Client

from access.choices import Role
from allocations.choices import GroupState
from allocations.ledger.groups import end_groups, fail_group
from allocations.models import Allocation, GpuGroup
from nodes.choices import Mode
from nodes.models import Device, Node
from tests.databases import TestDatabase
from tests.factories import NodeFactory, UserFactory
from tests.groups import leave, leaving, share, whole

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]
SignIn = Callable[..., Client]


@pytest.fixture
def as_user(client: Client) -> SignIn:
    def sign_in(role: Role, *namespaces: str) -> Client:
        client.force_login(UserFactory(role=role, namespaces=namespaces))
        return client

    return sign_in


@pytest.fixture
def nodes(ledger_db: TestDatabase) -> dict[str, Node]:
    """Two nodes whose kubelets give the GPUs out."""
    assert ledger_db
    return {name: NodeFactory(name=name, gpus=4, mode=Mode.DEVICE_PLUGIN) for name in ("n1", "n2")}


def shown(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode().partition("<main")[2]).split())


def rows(client: Client, query: str = "") -> list[str]:
    """Names of the groups in the table, from the top."""
    return re.findall(r'<tr id="group-(\w+)"', client.get(f"/reservations/{query}").content.decode())


@pytest.mark.usefixtures("nodes")
def test_unprotected_groups_come_first_and_are_marked(as_user: SignIn) -> None:
    """VIEW-2 SHARE-7 what needs somebody stands at the top, with why and what happens next."""
    client = as_user(Role.VIEWER, "research")
    ready = share("calm", node="n1", request=whole(1))
    bare = share("bare", node="n2", state=GroupState.UNPROTECTED)
    early = share("early", node="n1", state=GroupState.STARTING)
    assert rows(client) == [bare.name, early.name, ready.name]
    page = client.get("/reservations/").content.decode()
    assert re.findall(r'<tr id="group-(\w+)" class="alarming"', page) == [bare.name]
    words = shown(client, "/reservations/")
    assert (
        "its reservation pod is gone; the kubelet may give the GPU to others. A new reservation pod is made." in words
    )
    assert "1, not told yet" in words
    assert (rows(client, "?state=ready"), rows(client, "?node=n2"), rows(client, f"?q={early.name}")) == (
        [ready.name],
        [bare.name],
        [early.name],
    )
    assert rows(client, "?state=odd&page=x") == [bare.name, early.name, ready.name]


@pytest.mark.usefixtures("nodes")
def test_a_group_with_memory_and_sharers_of_others(as_user: SignIn) -> None:
    """SHARE-6 VIEW-6 memory allocated and being released of all; sharers only in namespaces that one sees."""
    group = share("mine", node="n1")
    share("theirs", node="n1", namespace="secret")
    leaving("theirs")
    client = as_user(Role.VIEWER, "research")
    for path in ("/reservations/", "/nodes/n1/", f"/devices/{Device.objects.get(gpu_group=group.name).pk}/"):
        words = shown(client, path)
        assert group.name in words, path
        assert "research/mine" in words, path
        assert "1 of another team" in words, path
        assert "secret" not in words, path
    words = shown(client, "/reservations/")
    assert "80 GiB of 80 GiB" in words
    assert "not measured" in words
    page = client.get("/reservations/").content.decode()
    assert 'width="49.4%" height="100%" class="used"' in page
    assert 'x="50%" y="0" width="50%" height="100%" class="held"' in page
    allocation = Allocation.objects.get(pod_name="mine")
    assert f"Reservation {group.name}" in shown(client, f"/allocations/{allocation.pk}/")


def test_a_node_that_begins_no_group_for_now(as_user: SignIn, nodes: dict[str, Node]) -> None:
    """VIEW-2 SHARE-5 the page says which nodes are put off, why, and until when; the node's own page too."""
    client = as_user(Role.VIEWER)
    for path in ("/reservations/", "/nodes/n1/"):
        assert "new group" not in shown(client, path)
    group = share("one", node="n1", state=GroupState.STARTING)
    now = datetime.now(UTC)
    assert fail_group(group.pk, "UnexpectedAdmissionError: only 0 GPUs left", now=now, actor="test")
    assert "n1 begins no new group until" in shown(client, "/reservations/")
    for path in ("/reservations/", "/nodes/n1/"):
        assert "UnexpectedAdmissionError: only 0 GPUs left" in shown(client, path), path
    assert "new group" not in shown(client, "/nodes/n2/")


@pytest.mark.usefixtures("nodes")
def test_a_gpu_that_is_reserved_for_nobody_is_not_free(as_user: SignIn) -> None:
    """SHARE-7 until the reservation pod has gone, its GPU is held; then it is free again."""
    client = as_user(Role.ADMIN)
    group = share("one", node="n1")
    leave("one")
    page = client.get("/nodes/n1/devices/").content.decode()
    assert re.findall(r'<span class="tag tag-\w+"><i></i>([a-z ]+)</span>', page) == ["held", "free", "free", "free"]
    assert "group releasing" in shown(client, "/nodes/n1/")
    assert end_groups([group.pk], now=datetime.now(UTC), actor="test") == 1
    assert "group releasing" not in shown(client, "/nodes/n1/")
    assert (rows(client), rows(client, "?state=gone")) == ([], [group.name])


@pytest.mark.usefixtures("nodes")
def test_the_list_costs_the_same_whatever_it_holds(
    as_user: SignIn, django_assert_max_num_queries: Callable[..., object]
) -> None:
    """VIEW-5 six queries beside those of every page."""
    client = as_user(Role.ADMIN)
    client.get("/reservations/")
    share("first", node="n1")
    counts = []
    for number in range(3):
        share(f"more-{number}", node="n2", request=whole(1))
        with django_assert_max_num_queries(12) as queries:  # type: ignore[attr-defined]  # a context manager
            assert len(rows(client)) == number + 2
        counts.append(len(queries))
    assert len(set(counts)) == 1


@pytest.mark.usefixtures("nodes")
def test_events_of_reservations_are_a_kind_of_their_own(as_user: SignIn) -> None:
    """VIEW-2 the events page filters by them."""
    client = as_user(Role.ADMIN)
    group = share("one", node="n1", state=GroupState.UNPROTECTED)
    words = shown(client, "/events/?group=reservations")
    for message in (
        "Reservation pod lost while its GPU is shared",
        "Reservation pod has its GPU",
        "Reservation pod made",
        "GPU wanted by a reservation pod",
    ):
        assert message in words
    assert "Devices held" not in words
    assert GpuGroup.objects.get().name == group.name
