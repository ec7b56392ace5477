"""Bad input at the cluster's endpoints over HTTP: a well-formed refusal, never a 500, never a half-written row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from django.apps import apps

from access.choices import Role, TokenScope
from access.models import TokenUse
from gpuplane.listeners.body_limits import BIND_BYTES
from tests.cluster_answers import (
    well_formed_bind,
    well_formed_filter,
    well_formed_preempt,
    well_formed_review,
    well_formed_scores,
)
from tests.functional.cluster_client import ClusterClient, claim_shape, cluster_client, pod_shape
from tests.hostile import LONG, NUL, RAW_TOKENS, paths, with_token
from tests.ledger_truth import problems
from tests.servers.web import LiveApp

LIMIT = 33_554_432
EXTENDER = ("/extender/filter", "/extender/prioritize", "/extender/bind", "/extender/preempt")
WEBHOOKS = (
    "/webhooks/pods/mutate",
    "/webhooks/pods/validate",
    "/webhooks/gpuclaims/validate",
    "/webhooks/bindings/validate",
)
CHECKS: dict[str, Callable[[bytes], Any]] = {
    "/extender/filter": well_formed_filter,
    "/extender/prioritize": well_formed_scores,
    "/extender/bind": well_formed_bind,
    "/extender/preempt": well_formed_preempt,
    **dict.fromkeys(WEBHOOKS, well_formed_review),
}
ROOMS = ("allocations", "claims", "nodes", "audit", "access")
POD = pod_shape("bad", claim="one")
REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "research",
        "name": "bad",
        "userInfo": {"username": "jane"},
        "object": POD,
    },
}
GOOD: dict[str, Any] = {
    "/extender/filter": {"Pod": POD, "NodeNames": ["n1", "n2"]},
    "/extender/prioritize": {"Pod": POD, "NodeNames": ["n1", "n2"]},
    "/extender/bind": {"PodName": "bad", "PodNamespace": "research", "PodUID": "uid-bad", "Node": "n1"},
    "/extender/preempt": {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "a"}], "NumPDBViolations": 1}}},
    **dict.fromkeys(WEBHOOKS, REVIEW),
}


@pytest.fixture(scope="module")
def client(live_app: LiveApp) -> Iterator[ClusterClient]:
    with cluster_client(live_app) as client:
        client.register("n1")
        client.register("n2")
        client.claim("one")
        yield client


def rows() -> dict[str, int]:
    """Table → how many rows; not when tokens were last used, which the web process writes by itself once a minute."""
    models = [model for room in ROOMS for model in apps.get_app_config(room).get_models() if model is not TokenUse]
    return {model._meta.label: model._default_manager.count() for model in models}


@pytest.fixture(scope="module")
def agent_token(live_app: LiveApp) -> str:
    return live_app.token(scope=TokenScope.AGENT, node="n1")


@pytest.fixture
def unchanged(client: ClusterClient) -> Iterator[None]:
    """Nothing is written by what the test sends."""
    before = rows()
    yield
    assert rows() == before
    assert problems() == []


def refuses(path: str, content: bytes) -> None:
    """The answer says no in the shape of its path."""
    told = CHECKS[path](content)
    if path == "/extender/filter":
        assert told["NodeNames"] in (None, [])
        assert told["Error"] or told["FailedAndUnresolvableNodes"]
    elif path == "/extender/bind":
        assert told
    elif path == "/extender/prioritize":
        assert all(entry["Score"] == 0 for entry in told)
    elif path == "/extender/preempt":
        assert told == {}
    else:
        assert told["allowed"] is False


NO_JSON = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="truncated"),
    pytest.param(b"nonsense", id="no JSON"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="a list"),
    pytest.param(b'"text"', id="a text"),
    pytest.param(b"1", id="a number"),
    pytest.param(b'{"Pod": "\xff\xfe"}', id="no UTF-8"),
    pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
    pytest.param(b"\x00" * 100, id="zeros"),
    pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep list"),
    pytest.param(b'{"Pod":' * 100_000 + b"1" + b"}" * 100_000, id="deep object"),
    pytest.param(b"9" * 100_000, id="long number"),
    pytest.param(b"PK\x03\x04\x1f\x8b", id="binary"),
]


@pytest.mark.parametrize("path", [*EXTENDER, *WEBHOOKS])
@pytest.mark.parametrize("body", NO_JSON)
@pytest.mark.usefixtures("unchanged")
def test_what_is_no_question_is_refused(client: ClusterClient, path: str, body: bytes) -> None:
    """CLAIM-3 bodies that are no question at all."""
    answer = client.cluster.post(path, content=body, headers={"Content-Type": "application/json"})
    if path == "/extender/bind" and len(body) > BIND_BYTES:
        assert answer.status_code == 413
        return
    assert answer.status_code == 200
    refuses(path, answer.content)


@pytest.mark.parametrize("path", [*EXTENDER, *WEBHOOKS])
def test_good_bodies_cut_anywhere_are_refused(client: ClusterClient, path: str) -> None:
    """A body whose end got lost."""
    before = rows()
    body = json.dumps(GOOD[path]).encode()
    for end in range(1, len(body), max(1, len(body) // 40)):
        answer = client.cluster.post(path, content=body[:end])
        assert answer.status_code == 200
        refuses(path, answer.content)
    assert rows() == before


@pytest.mark.parametrize("path", [*EXTENDER, *WEBHOOKS])
@pytest.mark.usefixtures("unchanged")
def test_hostile_values_anywhere_are_answered(client: ClusterClient, path: str) -> None:
    """NaN, 1e400, huge numbers, lone surrogates, double keys and depth in every place of a good body."""
    places = [place for place in paths(GOOD[path]) if place and place[-1] not in {"status", "phase", "image"}]
    for number, place in enumerate(places):
        # Every place gets two of the tokens; over the places each token comes about equally often.
        for token in (RAW_TOKENS[number % len(RAW_TOKENS)], RAW_TOKENS[(number + 7) % len(RAW_TOKENS)]):
            if path == "/extender/filter" and place[0] == "Pod" and "uid" not in place:
                continue  # a pod that can still be read may well be held: see the next test
            answer = client.cluster.post(path, content=with_token(GOOD[path], place, token))
            assert answer.status_code == 200, (place, token[:40])
            CHECKS[path](answer.content)


HOSTILE_NAMES = [
    pytest.param(NUL, id="NUL"),
    pytest.param(LONG, id="longer than its column"),
    pytest.param("A b", id="upper case and space"),
    pytest.param("../../etc", id="path"),
    pytest.param("-a", id="dash first"),
    pytest.param("Ü", id="no ASCII"),
    pytest.param("a\n", id="line end"),
    pytest.param("x_y", id="underscore"),
]
RULES = {
    "name": "the pod's name must be a DNS-1123 subdomain",
    "namespace": "the pod's namespace must be a DNS-1123 label",
}


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("value", HOSTILE_NAMES)
@pytest.mark.usefixtures("unchanged")
def test_pods_with_impossible_names_are_refused(client: ClusterClient, field: str, value: str) -> None:
    """SCALE-7 names that Kubernetes could not have given: every node refused with the rule, nothing written."""
    pod = {**POD, "metadata": {**POD["metadata"], field: value}}
    failed, never = client.refusal(pod, ["n1", "n2"])
    assert failed == {}
    assert set(never) == {"n1", "n2"}
    assert all(reason.startswith(RULES[field]) for reason in never.values())
    assert set(client.prioritize(pod, ["n1", "n2"]).values()) == {0}
    assert client.preempt(pod, {"n1": ["a"]}) == {}
    bind = {"name": "PodName", "namespace": "PodNamespace"}[field]
    answer = client.cluster.post("/extender/bind", json={**GOOD["/extender/bind"], bind: value})
    assert well_formed_bind(answer.content).startswith(RULES[field])


@pytest.mark.parametrize(
    ("uid", "want"),
    [
        pytest.param("", "the pod has no uid", id="none"),
        pytest.param(NUL, "the pod's uid must be", id="NUL"),
        pytest.param("x" * 129, "the pod's uid must be", id="longer than its column"),
        pytest.param("a/b", "the pod's uid must be", id="slash"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_pods_with_impossible_uids_are_refused(client: ClusterClient, uid: str, want: str) -> None:
    """SCALE-7 LEASE-1 the uid is part of the lease's holder: one that cannot be is refused."""
    pod = {**POD, "metadata": {**POD["metadata"], "uid": uid}}
    _, never = client.refusal(pod, ["n1"])
    assert never["n1"].startswith(want)
    answer = client.cluster.post("/extender/bind", json={**GOOD["/extender/bind"], "PodUID": uid})
    assert well_formed_bind(answer.content)


@pytest.mark.usefixtures("unchanged")
def test_other_peoples_pods_pass_however_odd(client: ClusterClient) -> None:
    """CLAIM-7 a pod that asks for no devices is none of our business."""
    odd = {"metadata": {"name": NUL, "namespace": LONG}, "spec": {"containers": [{"name": "c"}]}}
    assert client.filter(odd, ["n1", "n2"])["NodeNames"] == ["n1", "n2"]
    review = {**REVIEW, "request": {**REVIEW["request"], "object": odd}}
    for path in WEBHOOKS[:2]:
        told = well_formed_review(client.cluster.post(path, json=review).content)
        assert told["allowed"]
        assert "patch" not in told


@pytest.mark.parametrize("token", [b"1e400", b"9" * 5000, b'"\xff"', b"[1]"])
@pytest.mark.usefixtures("unchanged")
def test_our_pods_that_cannot_be_read_are_not_admitted(client: ClusterClient, token: bytes) -> None:
    """CLAIM-7 DEV-3 a pod that names a claim and is malformed is refused with a message; another one passes
    untouched.
    """
    for claim, want in (("one", False), ("", True)):
        pod = pod_shape("odd", claim=claim)
        review = {**REVIEW, "request": {**REVIEW["request"], "object": pod}}
        place = ("request", "object", "spec", "containers", 0, "resources", "limits", "cpu")
        pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
        for path in WEBHOOKS[:2]:
            told = well_formed_review(client.cluster.post(path, content=with_token(review, place, token)).content)
            assert told["allowed"] is want, (path, claim)
            assert "patch" not in told


AMOUNTS = {
    "negative": "-1",
    "NaN": "NaN",
    "beyond any number": "1e400",
    "beyond 2^63": "9" * 30,
    "thousands of digits": "1" * 5000,
    "unknown suffix": "1GB",
    "NUL": NUL,
    "a negative number": -1,
    "a huge number": 2**70,
    "less than one": "0.5",
}


@pytest.mark.parametrize("amount", AMOUNTS.values(), ids=AMOUNTS)
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "koordinator.sh/gpu-memory", "kubernetes.io/gpu"])
def test_impossible_amounts_are_refused_with_the_field(client: ClusterClient, resource: str, amount: Any) -> None:
    """DEV-3 SCALE-7 negative, huge, NaN: not admitted, and refused on every node if they come all the same."""
    pod = pod_shape("amount", resources={resource: amount})
    review = {**REVIEW, "request": {**REVIEW["request"], "object": pod}}
    told = well_formed_review(client.cluster.post("/webhooks/pods/validate", json=review).content)
    assert told["allowed"] is False
    assert f"resources.limits[{resource}]" in told["status"]["message"]
    failed, never = client.refusal(pod, ["n1"])
    assert failed == {}
    assert never["n1"].startswith(resource)
    assert problems() == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"devices": {"count": 0}}, "spec.devices.count", id="no devices"),
        pytest.param({"devices": {"count": 10**30}}, "spec.devices.count", id="huge count"),
        pytest.param({"devices": {"count": 1, "memory": "-1Gi"}}, "spec.devices.memory", id="negative memory"),
        pytest.param(
            {"devices": {"count": 1, "memory": "1e400"}}, "spec.devices.memory", id="memory beyond any number"
        ),
        pytest.param({"devices": {"count": 1, "core": 101}}, "spec.devices.core", id="core over 100"),
        pytest.param({"devices": {"count": 1, "type": "A b"}}, "spec.devices.type", id="name of the type"),
        pytest.param({"devices": {"count": 1}, "ttlSeconds": -5}, "spec.ttlSeconds", id="negative time"),
        pytest.param({"devices": {"count": 1}, "gangRef": "A b"}, "spec.gangRef", id="gang's name"),
        pytest.param({}, "spec.devices", id="no devices given"),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_malformed_claims_are_refused_by_every_endpoint(client: ClusterClient, spec: Any, field: str) -> None:
    """CLAIM-1 CLAIM-3 by the webhook with field and rule, by REST with a problem document."""
    manifest = {**claim_shape("odd", "research", None), "spec": spec}
    review = {
        **REVIEW,
        "request": {**REVIEW["request"], "kind": {"kind": "GpuClaim", "version": "v1"}, "object": manifest},
    }
    told = well_formed_review(client.cluster.post("/webhooks/gpuclaims/validate", json=review).content)
    assert told["allowed"] is False
    assert field in told["status"]["message"]
    problem = client.rest("POST", "claims/", manifest, want=400)
    assert problem["field"] == field


@pytest.mark.parametrize("path", [*EXTENDER, *WEBHOOKS])
@pytest.mark.usefixtures("unchanged")
def test_methods_and_content_types(client: ClusterClient, path: str) -> None:
    """Another method is refused by name; what the content is called does not matter, what it is does."""
    for method in ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        answer = client.cluster.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), method
        assert answer.headers["content-type"] == "application/problem+json"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml"):
        answer = client.cluster.post(path, content=b"a=b", headers={"Content-Type": kind})
        assert answer.status_code == 200
        refuses(path, answer.content)
    assert client.cluster.post(f"{path}/").status_code == 404
    assert client.cluster.post(f"{path}x").status_code == 404


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/extender/filter", LIMIT),
        ("/extender/bind", 64 << 10),
        ("/webhooks/pods/mutate", 3 << 20),
        ("/api/v1/claims/", 1 << 20),
        ("/api/v1/nodes/n1/inventory/", 1 << 20),
        ("/api/v1/simulations/", 4 << 20),
        ("/api/v1/agents/n1/samples/", 256 << 10),
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["by its Content-Length", "in chunks"])
@pytest.mark.usefixtures("unchanged")
def test_too_much_is_refused(client: ClusterClient, agent_token: str, path: str, limit: int, chunked: bool) -> None:
    """VIEW-5 more than the limit of the address: 413 with a problem document, whether it was said beforehand or not."""
    size = limit + 1

    def pieces() -> Iterator[bytes]:
        for _ in range(size // 65_536 + 1):
            yield b" " * 65_536

    asks, headers = (client.person if path.startswith("/api/") else client.cluster), {}
    if path.startswith("/api/v1/agents/"):
        headers["Authorization"] = f"Bearer {agent_token}"
    try:
        answer = asks.post(path, content=pieces() if chunked else b" " * size, headers=headers)
    except httpx.WriteError:
        pytest.fail("the answer must be readable by a client that is still sending")
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert str(limit) in answer.json()["detail"]


@pytest.mark.usefixtures("unchanged")
def test_a_body_as_large_as_allowed_is_answered(client: ClusterClient) -> None:
    """CLAIM-4 padding up to the limit changes nothing."""
    body = json.dumps({"Pod": pod_shape("large"), "NodeNames": ["n1"]}).encode()
    answer = client.cluster.post("/extender/filter", content=body + b" " * (LIMIT - len(body)))
    assert answer.status_code == 200
    assert well_formed_filter(answer.content)["NodeNames"] == ["n1"]


def test_unauthenticated_clients_learn_nothing(live_app: LiveApp, client: ClusterClient) -> None:
    """VIEW-6 hostile bodies without a token, or with a viewer's, end at 401 and 403, unread."""
    with live_app.client(role=Role.VIEWER) as viewer, httpx.Client(base_url=live_app.url) as nobody:
        before = rows()
        for path in (*EXTENDER, *WEBHOOKS):
            assert nobody.post(path, content=b"[" * 1000).status_code == 401
            assert viewer.post(path, content=b"[" * 1000).status_code == 403
        assert rows() == before


@pytest.mark.parametrize(
    "media_type",
    [
        pytest.param("multipart/form-data; boundary*=nonsense''x", id="an unknown charset"),
        pytest.param("text/plain; charset*=utf-8''%00", id="a NUL"),
    ],
)
def test_a_media_type_that_cannot_be_decoded(live_app, media_type):
    """VIEW-6 from somebody who is not signed in: 400, and no fault."""
    with httpx.Client(base_url=live_app.url, verify=False) as client:
        answer = client.post("/sign-in/", content=b"x", headers={"Content-Type": media_type})
    assert answer.status_code == 400
