"""Bodies that are small to send and large to read, over HTTP: refused in the shape of each door, and nothing of them is
made.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests import bombs
from tests.cluster_answers import well_formed_review
from tests.functional.cluster_client import ClusterClient, cluster_client
from tests.functional.test_bad_input import WEBHOOKS, refuses, rows
from tests.ledger_truth import problems
from tests.servers.web import LiveApp


@pytest.fixture(scope="module")
def client(live_app: LiveApp) -> Iterator[ClusterClient]:
    with cluster_client(live_app) as client:
        client.register("n1")
        yield client


@pytest.fixture
def unchanged(client: ClusterClient) -> Iterator[None]:
    """Nothing is written by what the test sends."""
    before = rows()
    yield
    assert rows() == before
    assert problems() == []


@pytest.fixture
def person(live_app: LiveApp) -> Iterator[httpx.Client]:
    """A credential of the test's own: large inventories have a pace."""
    with live_app.client() as own:
        yield own


COMMENTS = "comments without end"
BOMBS: dict[str, dict[str, bytes]] = {
    "/extender/filter": {
        "nodes": b'{"Pod":{},"Nodes":{"items":' + bombs.many(b"{}", 9 * bombs.MIB) + b"}}",
        "numbers": b'{"Pod":{},"NodeNames":' + bombs.many(b"1", 9 * bombs.MIB) + b"}",
        "containers": b'{"NodeNames":["n1"],"Pod":{"metadata":{"name":"bomb","uid":"u"},"spec":{"containers":'
        + bombs.many(b"{}", 2 * bombs.MIB)
        + b"}}}",
    },
    "/extender/preempt": {
        "victims": b'{"NodeNameToVictims":{"n1":{"Pods":' + bombs.many(b"{}", 9 * bombs.MIB) + b"}}}"
    },
    **{
        path: {
            "containers": bombs.review(bombs.many(b"{}", 2 * bombs.MIB)),
            "lists": bombs.review(bombs.many(b"[]", 2 * bombs.MIB)),
            "numbers": bombs.review(bombs.many(b"1", 2 * bombs.MIB)),
        }
        for path in WEBHOOKS
    },
}


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(path, body, id=f"{path} {name}") for path, listed in BOMBS.items() for name, body in listed.items()],
)
@pytest.mark.usefixtures("unchanged")
def test_more_values_than_are_taken_are_refused_in_the_shape_of_the_path(
    client: ClusterClient, path: str, body: bytes
) -> None:
    """SCALE-7 CLAIM-3 millions of values in a body that is not too long: nothing of it is made, and the answer is well
    formed.
    """
    answer = client.cluster.post(path, content=body)
    assert answer.status_code == 200
    refuses(path, answer.content)
    if path in WEBHOOKS:
        told = well_formed_review(answer.content)
        assert told["uid"] == "705ab4f5"
        assert "more than" in told["status"]["message"]


@pytest.mark.parametrize("path", ["claims/", "nodes/n1/inventory/", "simulations/"])
@pytest.mark.parametrize(
    ("body", "kind", "want"),
    [
        pytest.param(bombs.lists(1_000_000), "application/json", {413}, id="JSON of empty lists"),
        pytest.param(b"[" * 500_000, "application/json", {400, 413}, id="JSON that only opens"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, "application/json", {400}, id="deep JSON"),
        *[
            pytest.param(body, "application/yaml", {400, 413}, id=f"YAML: {name}")
            for name, body in bombs.YAML_BOMBS.items()
        ],
    ],
)
@pytest.mark.usefixtures("person", "unchanged")  # in this order: the account is there before rows are counted
def test_bombs_over_rest_are_problem_documents(
    person: httpx.Client, path: str, body: bytes, kind: str, want: set[int]
) -> None:
    """VIEW-5 SCALE-7 small to send, large to read."""
    method = "PUT" if path.startswith("nodes") else "POST"
    answer = person.request(method, f"/api/v1/{path}", content=body, headers={"Content-Type": kind})
    if path == "simulations/" and body is bombs.YAML_BOMBS[COMMENTS]:
        assert answer.status_code == 200, "an empty scenario, read in a process of its own"
        return
    assert answer.status_code in want
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code


def test_unauthenticated_clients_send_little(live_app: LiveApp) -> None:
    """VIEW-5 without a credential 64 KiB are read, and no more."""
    with httpx.Client(base_url=live_app.url) as nobody:
        for path in ("/api/v1/simulations/", "/claims/new/", "/sign-in/"):
            answer = nobody.post(path, content=b"x" * (64 * 1024 + 1))
            assert (answer.status_code, answer.json()["status"]) == (413, 413)
