"""The form of an allocation's page that resizes a share: who has it, and what it answers."""

import html

import pytest

from access.choices import Role
from allocations.backends import current_backends
from allocations.choices import State
from allocations.models import Allocation
from allocations.scheduling.resizing import resize_claims
from storage.clock import database_now
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]


@pytest.fixture
def fleet(ledger_db):
    """A node with a GPU that research holds whole."""
    node = NodeFactory(name="n1", gpus=2)
    pod = pod_manifest("research-pod", namespace="research", resources={"nvidia.com/gpu": "1"})
    assert bound(pod, filtered(pod, ["n1"])) == ""
    return node


@pytest.fixture
def as_user(client):
    """Signs somebody in and gives the client: `as_user(Role.VIEWER, "research")`."""

    def sign_in(role, *namespaces):
        client.force_login(UserFactory(role=role, namespaces=namespaces))
        return client

    return sign_in


def share_of(namespace):
    """A pod of the namespace that runs with a share."""
    pod = pod_manifest(f"{namespace}-share", namespace=namespace, annotations={"gpu-fraction": "0.3"})
    assert bound(pod, filtered(pod, ["n1"])) == ""
    return Allocation.objects.get(pod_name=f"{namespace}-share")


@pytest.mark.parametrize(
    ("form", "want", "want_message"),
    [
        pytest.param({"core": "50", "memory": ""}, (50, None), "has its new amounts", id="core"),
        pytest.param({"core": "", "memory": "1Gi"}, (30, 1 << 30), "has its new amounts", id="memory"),
        pytest.param({"core": "", "memory": ""}, (30, None), "give core, memory or both", id="nothing"),
        pytest.param({"core": "a lot"}, (30, None), "core is a whole number", id="a word"),
        pytest.param({"memory": "a lot"}, (30, None), "memory:", id="no quantity"),
        pytest.param({"core": "101"}, (30, None), "0 to 100", id="too much"),
    ],
)
def test_a_share_is_resized_on_its_page(as_user, fleet, form, want, want_message):
    """SHARE-6b VIEW-2 the form says what became of it; whole devices have none."""
    allocation = share_of("research")
    client = as_user(Role.OPERATOR, "research")
    path = f"/allocations/{allocation.pk}/"
    assert f"{path}resize/" in client.get(path).content.decode()
    assert "/resize/" not in client.get(f"/allocations/{whole_of('research').pk}/").content.decode()
    answer = client.post(f"{path}resize/", form, follow=True)
    assert want_message in answer.content.decode()
    grant = allocation.devices.get()
    core, memory = want
    assert grant.core_percent == core
    assert grant.memory_bytes == (grant.device.memory_bytes * 30 // 100 if memory is None else memory)


@pytest.mark.parametrize(
    ("role", "namespace", "want"),
    [
        pytest.param(Role.VIEWER, "research", 403, id="a viewer"),
        pytest.param(Role.OPERATOR, "other", 404, id="an operator of another team"),
    ],
)
def test_who_may_not_resize_on_a_page(as_user, fleet, role, namespace, want):
    """VIEW-6 SHARE-6b who may not write has no form, and is refused."""
    allocation = share_of("research")
    client = as_user(role, namespace)
    path = f"/allocations/{allocation.pk}/"
    assert "/resize/" not in client.get(path).content.decode()
    assert client.post(f"{path}resize/", {"core": "50"}).status_code == want
    assert allocation.devices.get().core_percent == 30


def whole_of(namespace):
    return Allocation.objects.filter(namespace=namespace, state=State.BOUND, devices__whole=True).first()


def test_a_claim_whose_shares_do_not_follow(as_user, fleet):
    """SHARE-6b VIEW-2 the claim's page says which share is refused, and why, for as long as it is."""
    claim = GpuClaimFactory(
        namespace="research", name="part", spec={"devices": {"count": 1, "core": 30, "memory": "1Gi"}, "resize": True}
    )
    for name in ("a", "b"):
        pod = pod_manifest(name, namespace="research", claim="part")
        assert bound(pod, filtered(pod, ["n1"])) == ""
    client = as_user(Role.VIEWER, "research")
    for core, want in ((60, True), (40, False)):
        claim.refresh_from_db()
        claim.spec["devices"]["core"] = core
        claim.save()
        resize_claims(backends=current_backends(), now=database_now())
        shown = client.get("/claims/research/part/").content.decode()
        assert ("A share does not follow this claim. b: gpu 1 has 10 core" in shown) == want
        assert ("does not follow" in shown) == want


@pytest.mark.parametrize(
    ("form", "field"),
    [
        pytest.param({"core": "9", "memory": "777Gi"}, "resize", id="no room"),
        pytest.param({"core": "9", "memory": "a lot"}, "memory", id="no quantity"),
        pytest.param({"core": "101", "memory": "1Gi"}, "core", id="too much"),
    ],
)
def test_a_refused_resize_keeps_what_was_typed(as_user, fleet, form, field):
    """SHARE-6b VIEW-2 the page comes again with the reason at its field."""
    allocation = share_of("research")
    path = f"/allocations/{allocation.pk}/"
    answer = as_user(Role.OPERATOR, "research").post(f"{path}resize/", form)
    shown = answer.content.decode()
    assert (answer.status_code, answer.context["problem"].field) == (400, field)
    assert f'id="{field}-problem" role="alert"' in shown
    assert all(f'value="{typed}"' in shown for typed in form.values())
    assert f'hx-get="{path}"' in shown
    assert allocation.devices.get().core_percent == 30


def test_a_refused_resize_without_a_form_says_why(as_user, fleet):
    """SHARE-6b VIEW-2 whole devices have no form to say it at."""
    answer = as_user(Role.OPERATOR, "research").post(f"/allocations/{whole_of('research').pk}/resize/", {"core": "50"})
    assert answer.status_code == 400
    assert answer.context["problem"].text in html.unescape(answer.content.decode())
