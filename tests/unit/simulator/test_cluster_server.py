"""The simulated API server over HTTP, by gpuplane's own client."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.listeners.unverified_claims import why_never
from kube.client import Cluster
from kube.configured import configuration_source
from kube.errors import AlreadyExists, ConflictInCluster, KubeError, NotFoundInCluster
from kube.objects import Pod
from kube.resources import LEASES, NODE_POOLS, NODES, PODS
from kube.token_reviews import review
from kube.watch import Bookmark, Changed, ListWatch, Relisted
from simulator.cluster import kinds
from simulator.cluster.server import open_listener
from simulator.cluster.tokens import ACCOUNT, AUDIENCE, Tokens
from tests.servers.simulated_cluster import SimulatedCluster, simulated_cluster

PATH = PODS.path(namespace="team", name="p")


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedCluster]:
    with simulated_cluster(tmp_path) as running:
        yield running


@pytest.fixture
def client(simulated: SimulatedCluster) -> Iterator[Cluster]:
    with Cluster(configuration_source(simulated.kubeconfig)) as cluster:
        yield cluster


def make(client: Cluster, name: str = "p", **spec: object) -> Pod:
    return client.create(PODS.path(namespace="team"), {"metadata": {"name": name}, "spec": spec}, Pod)


def test_objects(client: Cluster) -> None:
    """Created, read, patched and deleted, with the refusals of an API server."""
    made = make(client)
    with pytest.raises(AlreadyExists):
        make(client)
    patched = client.patch(PATH, {"metadata": {"annotations": {"a": "1"}}}, Pod)
    assert (patched.annotations, patched.metadata.uid) == ({"a": "1"}, made.metadata.uid)
    with pytest.raises(ConflictInCluster):
        client.delete(PATH, uid="another")
    client.delete(PATH, uid=made.metadata.uid)
    with pytest.raises(NotFoundInCluster):
        client.get(PATH, Pod)
    assert client.list(NODE_POOLS.path(), Pod).items == []


def test_a_binding(client: Cluster) -> None:
    """Its annotations are merged into the pod."""
    made = make(client)
    binding = {"metadata": {"uid": made.metadata.uid, "annotations": {"a": "1"}}, "target": {"name": "n"}}
    client.request("POST", f"{PATH}/binding", body=binding)
    bound = client.get(PATH, Pod)
    assert (bound.spec.node_name, bound.annotations) == ("n", {"a": "1"})
    client.request("POST", f"{PATH}/eviction", body={})
    assert client.get(PATH, Pod).metadata.deletion_timestamp


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/api/v1/unknown", id="an unknown kind"),
        pytest.param("GET", "/elsewhere", id="no path of the API"),
        pytest.param("POST", PATH, id="a method that an object has not"),
        pytest.param("POST", PODS.path(namespace="team"), id="a body that is no JSON"),
        pytest.param("GET", f"{PODS.path()}?fieldSelector=nonsense", id="a selector that is none"),
    ],
)
def test_what_is_refused(client: Cluster, method: str, path: str) -> None:
    """With a status, and the server goes on."""
    with pytest.raises(KubeError):
        client.request(method, path, body=b"{" if method == "POST" else None, retry=False)
    assert client.list(PODS.path(), Pod).items == []


def test_a_watch(client: Cluster, simulated: SimulatedCluster) -> None:
    """What is there, what changes and what leaves a selector, and a bookmark at the end."""
    make(client, "before")
    seen: list[tuple[str, str]] = []

    def follow() -> None:
        watch = ListWatch(client, PODS, Pod, field_selector="spec.nodeName=")
        for event in watch.events(seconds=2):
            if isinstance(event, Relisted):
                seen.extend(("LISTED", name) for _, name in event.objects)
                begun.set()
            elif isinstance(event, Changed):
                seen.append((event.type, event.key[1]))
            elif isinstance(event, Bookmark):
                seen.append(("BOOKMARK", ""))

    begun = threading.Event()
    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(10)
    make(client, "p")
    client.request("POST", f"{PATH}/binding", body={"target": {"name": "n"}})
    simulated.run(lambda: simulated.store.create(kinds.NODES, "", {"metadata": {"name": "n"}}))
    thread.join()
    assert seen == [("LISTED", "before"), ("ADDED", "p"), ("DELETED", "p"), ("BOOKMARK", "")]


def test_only_with_the_token(simulated: SimulatedCluster, tmp_path: Path) -> None:
    """Others on the machine read and write nothing."""
    known = json.loads(simulated.kubeconfig.read_text())
    known["users"][0]["user"]["token"] = "guessed"
    other = tmp_path / "other"
    other.write_text(json.dumps(known))
    with Cluster(configuration_source(other)) as client, pytest.raises(KubeError, match="Unauthorized"):
        client.list(NODES.path(), Pod)
    assert stat.S_IMODE(simulated.kubeconfig.stat().st_mode) == 0o600


def test_tokens_of_agents(client: Cluster, simulated: SimulatedCluster) -> None:
    """A token is for one node; gpuplane takes it for what it may be, and the review says whose it is."""
    secret = json.loads(simulated.kubeconfig.read_text())["users"][0]["user"]["token"].encode()
    token = Tokens(secret).of_agent("n1", now=time.time())
    assert why_never(token, account=ACCOUNT, audience=AUDIENCE, now=time.time()) == ""
    reviewed = review(client, token=token, audience=AUDIENCE)
    assert reviewed is not None
    assert (reviewed.username, reviewed.node) == (ACCOUNT, "n1")
    assert review(client, token=Tokens(b"other").of_agent("n1", now=time.time()), audience=AUDIENCE) is None
    assert review(client, token="no token", audience=AUDIENCE) is None
    assert review(client, token=token, audience="elsewhere") is None


def test_the_address_stays(simulated: SimulatedCluster, tmp_path: Path) -> None:
    """A server that starts again has the port and the token of before; another port where that is taken."""
    folder = tmp_path / "second"
    folder.mkdir()
    listener, first = open_listener(folder / "kubeconfig")
    listener.close()
    listener, second = open_listener(folder / "kubeconfig")
    listener.close()
    assert first == second
    taken = folder / "taken"
    taken.write_text(simulated.kubeconfig.read_text())
    listener, third = open_listener(taken)
    listener.close()
    known = json.loads(simulated.kubeconfig.read_text())
    assert not known["clusters"][0]["cluster"]["server"].endswith(f":{third.port}")
    assert third.token == known["users"][0]["user"]["token"]


def test_leases(client: Cluster) -> None:
    """A second one of a name is refused."""
    body = {"metadata": {"name": "gpu-n1-0"}, "spec": {"holderIdentity": "team/p/u"}}
    client.create(LEASES.path(namespace="gpuplane-system"), body, Pod)
    with pytest.raises(AlreadyExists):
        client.create(LEASES.path(namespace="gpuplane-system"), body, Pod)
