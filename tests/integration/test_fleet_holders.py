"""Who holds what by team, namespace, pod and claim, as the fleet page asks for it: no more than a device's card
tells.
"""

import pytest

from access.actors import Actor
from access.choices import Role
from access.models import Team, TeamNamespace
from allocations.fleet_holders import ANSWERS, KEPT_SECONDS, HolderCache, HolderKey
from nodes.models import Device
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory, TeamFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]


@pytest.fixture(autouse=True)
def nothing_told_yet():
    ANSWERS.forget()


@pytest.fixture
def fleet(ledger_db):
    """A node whose first GPU research holds, and whose second GPU secret holds."""
    node = NodeFactory(name="n1", gpus=3)
    for namespace in ("research", "secret"):
        pod = pod_manifest(f"{namespace}-pod", namespace=namespace, resources={"nvidia.com/gpu": "1"})
        assert bound(pod, filtered(pod, ["n1"])) == ""
    return node


@pytest.mark.parametrize(
    ("role", "namespaces", "want_teams", "want_others"),
    [
        pytest.param(Role.VIEWER, ["research"], {"the readers": [0]}, [1], id="my team's by name, others' unnamed"),
        pytest.param(Role.VIEWER, [], {}, [0, 1], id="who is in no team sees no name"),
        pytest.param(
            Role.ADMIN, [], {"the readers": [0], "secret": [1]}, [], id="admins see all, without a team the namespace"
        ),
    ],
)
def test_teams_of_holders_are_reported_as_on_the_card(client, fleet, role, namespaces, want_teams, want_others):
    """VIEW-1 VIEW-6 the fleet by team tells no more than a device's card: names of my own teams only."""
    user = UserFactory(role=role)
    readers = TeamFactory(name="the readers")
    TeamNamespace.objects.create(team=readers, namespace="research")
    if namespaces:
        readers.members.add(user)
    TeamNamespace.objects.create(team=TeamFactory(name="another"), namespace="research")
    if role == Role.ADMIN:
        Team.objects.filter(name="another").delete()
    client.force_login(user)
    minor_of = {device.pk: device.minor for device in fleet.devices.all()}
    answer = client.get("/fleet/holders/")
    assert answer["Content-Type"] == "application/json"
    told = answer.json()
    assert {team: [minor_of[pk] for pk in held] for team, held in told["names"].items()} == want_teams
    assert [minor_of[pk] for pk in told["others"]] == want_others


def test_a_device_of_two_teams_is_with_both(client):
    """VIEW-1 shares of one GPU: each holder's team has it, once."""
    NodeFactory(name="n1", gpus=1)
    for name, namespace in (("a", "research"), ("b", "research"), ("c", "secret")):
        share = {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory-ratio": "20"}
        pod = pod_manifest(name, namespace=namespace, resources=share)
        assert bound(pod, filtered(pod, ["n1"])) == ""
    client.force_login(UserFactory(role=Role.ADMIN))
    (device,) = Device.objects.all()
    assert client.get("/fleet/holders/").json() == {
        "names": {"research": [device.pk], "secret": [device.pk]},
        "others": [],
    }


@pytest.mark.parametrize(
    ("by", "want"),
    [
        pytest.param("namespace", {"research": [0, 1]}, id="namespace"),
        pytest.param("pod", {"research/plain": [0], "research/claiming": [1]}, id="pod"),
        pytest.param("claim", {"research/one": [1]}, id="claim"),
    ],
)
def test_by_what_else_holders_are_named(client, by, want):
    """VIEW-1 VIEW-6 pods, claims and namespaces that I see; of the others that they hold something."""
    node = NodeFactory(name="n1", gpus=3)
    GpuClaimFactory(name="one", namespace="research")
    pods = [
        pod_manifest("plain", namespace="research", resources={"nvidia.com/gpu": "1"}),
        pod_manifest("claiming", namespace="research", claim="one"),
        pod_manifest("hidden", namespace="secret", resources={"nvidia.com/gpu": "1"}),
    ]
    for pod in pods:
        assert bound(pod, filtered(pod, ["n1"])) == ""
    client.force_login(UserFactory(role=Role.VIEWER, namespaces=["research"]))
    minor_of = {device.pk: device.minor for device in node.devices.all()}
    told = client.get("/fleet/holders/", {"by": by}).json()
    assert {name: [minor_of[pk] for pk in held] for name, held in told["names"].items()} == want
    assert [minor_of[pk] for pk in told["others"]] == [2]


def test_an_unknown_naming_is_refused(client):
    """Refused with those there are."""
    client.force_login(UserFactory(role=Role.VIEWER))
    answer = client.get("/fleet/holders/", {"by": "mood"})
    assert answer.status_code == 400
    assert "by must be one of team, namespace, pod, claim" in answer.content.decode()


def test_an_answer_is_made_once_for_all_who_see_the_same(client, fleet, django_assert_num_queries):
    """A few seconds old at most; nobody is told what was made for somebody who sees more."""
    now = [100.0]
    answers = HolderCache(clock=lambda: now[0])
    one, other = (Actor(name=name, role=Role.VIEWER, namespaces=frozenset({"research"})) for name in ("one", "other"))
    with django_assert_num_queries(1):
        told = answers.of(actor=one, by=HolderKey.POD, team_of={})
        assert answers.of(actor=other, by=HolderKey.POD, team_of={}) is told
    assert b"research/research-pod" in told
    assert b"secret-pod" not in told
    nobody = Actor(name="nobody", role=Role.VIEWER, namespaces=frozenset())
    assert b"research-pod" not in answers.of(actor=nobody, by=HolderKey.POD, team_of={})
    assert b"secret-pod" in answers.of(
        actor=Actor(name="all", role=Role.ADMIN, namespaces=None), by=HolderKey.POD, team_of={}
    )
    assert b"vision" in answers.of(actor=one, by=HolderKey.TEAM, team_of={"research": "vision"})
    assert b"vision" not in answers.of(actor=one, by=HolderKey.TEAM, team_of={"research": "language"})
    now[0] += KEPT_SECONDS
    with django_assert_num_queries(1):
        assert answers.of(actor=one, by=HolderKey.POD, team_of={}) == told
