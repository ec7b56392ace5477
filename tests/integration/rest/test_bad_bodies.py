"""Hostile bytes on every address that takes a body: a problem document, never a fault, never a half-written row."""

import json

import pytest
from django.test import override_settings

from access.models import Team
from allocations.models import Allocation
from claims.models import GpuClaim
from nodes.models import Node
from tests.factories import UserFactory
from tests.integration.rest.conftest import claim_manifest, inventory

pytestmark = pytest.mark.django_db

ADDRESSES = [
    ("POST", "claims/"),
    ("PUT", "claims/team-a/train/"),
    ("PATCH", "claims/team-a/train/"),
    ("POST", "claims/team-a/train/renew/"),
    ("POST", "allocations/"),
    ("PUT", "nodes/n1/inventory/"),
    ("POST", "simulations/"),
]
TRAIN = {"namespace": "team-a", "claim": "train"}
RED = {"name": "red", "namespaces": [], "members": []}
JSON = "application/json"
YAML = "application/yaml"
BODIES = [
    pytest.param(b"{", JSON, 400, id="cut off"),
    pytest.param(b"", JSON, 400, id="empty"),
    pytest.param(b"  \n", JSON, 400, id="blank"),
    pytest.param(b"null", JSON, 400, id="null"),
    pytest.param(b"[]", JSON, 400, id="a list"),
    pytest.param(b'"x"', JSON, 400, id="text"),
    pytest.param(b"1e999", JSON, 400, id="a number beyond floats"),
    pytest.param(b'{"a": NaN}', JSON, 400, id="NaN"),
    pytest.param(b'{"a": Infinity}', JSON, 400, id="Infinity"),
    pytest.param(b'{"a": "\\u0000"}', JSON, 400, id="NUL"),
    pytest.param(b'{"\\u0000": 1}', JSON, 400, id="NUL in a key"),
    pytest.param(b'{"a": "\\ud800"}', JSON, 400, id="lone surrogate"),
    pytest.param(b'{"a": "\xff"}', JSON, 400, id="not UTF-8"),
    pytest.param(b"[" * 100_000, JSON, 400, id="deep and cut off"),
    pytest.param(b"[" * 1000 + b"]" * 1000, JSON, 400, id="deep"),
    pytest.param(b'{"a":' * 90 + b"1" + b"}" * 90, JSON, 400, id="deep objects"),
    pytest.param(b"{", YAML, 400, id="YAML cut off"),
    pytest.param(b"", YAML, 400, id="YAML empty"),
    pytest.param(b"a: .nan", YAML, 400, id="YAML NaN"),
    pytest.param(b'a: "\\0"', YAML, 400, id="YAML NUL"),
    pytest.param(b"a: !!python/object/apply:os.system [ls]", YAML, 400, id="YAML tag"),
    pytest.param(b"a: &x [1]\nb: *x", YAML, 400, id="YAML alias"),
    pytest.param(b"a: !!binary aGk=", YAML, 400, id="YAML bytes"),
    pytest.param(b"a: 2026-13-45", YAML, 400, id="YAML date that is none"),
    pytest.param(b"a: 2026-01-01", YAML, 400, id="YAML date"),
    pytest.param(b"1: a", YAML, 400, id="YAML key not text"),
    pytest.param(b"? [a]\n: b", YAML, 400, id="YAML list as key"),
    pytest.param(b"a: " + b"9" * 5000, YAML, 400, id="YAML huge number"),
    pytest.param(b"[" * 5000 + b"]" * 5000, YAML, 400, id="YAML deep"),
    pytest.param(b"a: 1\n---\nb: 2", YAML, 400, id="YAML of two documents"),
    pytest.param(b"\xff\xfe\x00", YAML, 400, id="YAML not UTF-8"),
    pytest.param(b"<a/>", "application/xml", 415, id="XML"),
    pytest.param(b"a=b", "application/x-www-form-urlencoded", 415, id="a form"),
    pytest.param(b"{}", "application/json, text/html", 415, id="odd media type"),
]


HARMLESS = {
    ("POST", "simulations/", b"null"): 200,  # a scenario of nothing
    ("POST", "simulations/", b""): 200,
    ("PATCH", "claims/team-a/train/", b""): 200,  # changes nothing
    ("POST", "claims/team-a/train/renew/", b""): 409,  # the claim's own time; nothing is allocated
}


@pytest.mark.parametrize(("method", "path"), ADDRESSES)
@pytest.mark.parametrize(("body", "content_type", "want"), BODIES)
def test_hostile_bodies_are_refused(admin, method, path, body, content_type, want):
    want = HARMLESS.get((method, path, body), want)
    admin.post("claims/", claim_manifest())
    claims, nodes = list(GpuClaim.objects.values()), list(Node.objects.values())
    status, problem = admin.call(method, path, raw=body, content_type=content_type)
    assert status == want, problem
    if status != 200:
        assert problem["status"] == want
        assert problem["detail"]
    assert (list(GpuClaim.objects.values()), list(Node.objects.values())) == (claims, nodes)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["without an idempotency key", "with one"])
@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000, GPUPLANE_BODY_LIMIT=1000)
def test_a_body_over_the_limit_is_refused(admin, headers):
    raw = json.dumps(inventory(gpus=16)).encode()
    status, problem = admin.put("nodes/n1/inventory/", raw=raw, headers=headers)
    assert (status, problem["status"]) == (413, 413)
    assert not Node.objects.exists()


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        pytest.param("POST", "allocations/", {**TRAIN, "queeu": "q"}, "queeu", id="queue"),
        pytest.param("POST", "claims/team-a/train/renew/", {"ttlSecond": 5}, "ttlSecond", id="time"),
        pytest.param("PATCH", "accounts/olga/", {"roles": "admin"}, "roles", id="role"),
        pytest.param("POST", "teams/", {**RED, "l" * 500: 1}, "l" * 100, id="a long name"),
        pytest.param("POST", "tokens/", {"day": 1}, "day", id="end of a token"),
    ],
)
def test_misspelt_fields_are_refused(admin, method, path, body, field):
    """CLAIM-10, VIEW-6 what somebody asked for is not left out without a word."""
    admin.post("claims/", claim_manifest())
    UserFactory(username="olga")
    status, problem = admin.call(method, path, body)
    assert (status, problem["field"], problem["rule"]) == (400, field, "unknown-field")
    assert f"{field} is not a field of this body; known: " in problem["detail"]
    assert not Allocation.objects.exists()
    assert not Team.objects.exists()


def test_keys_that_stand_twice_count_once(admin):
    raw = json.dumps(claim_manifest()).replace('"count": 1', '"count": 0, "count": 2').encode()
    assert admin.post("claims/", raw=raw)[1]["spec"]["devices"] == {"count": 2}


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("GET", "/api/v1/nothing/", 404, id="unknown address"),
        pytest.param("POST", "/api/", 404, id="the root"),
        pytest.param("GET", "/api/v1/allocations/not-a-uuid/", 404, id="uid that is none"),
        pytest.param("DELETE", "/api/v1/claims/", 405, id="a method that is not there"),
        pytest.param("TRACE", "/api/v1/claims/", 405, id="TRACE"),
        pytest.param("OPTIONS", "/api/v1/claims/", 405, id="OPTIONS"),
        pytest.param("OPTIONS", "/api/v1/nodes/n1/inventory/", 405, id="OPTIONS of a write"),
        pytest.param("BREW", "/api/v1/simulations/", 405, id="a made-up method"),
        pytest.param("GET", "/api/v1/claims/%00/a/", 400, id="NUL in the address"),
        pytest.param("GET", "/api/v1/claims/A/b/", 404, id="a namespace that cannot be"),
        pytest.param("GET", "/api/v1/nodes/%ff/", 404, id="an address not in UTF-8"),
        pytest.param("GET", "/api/v1/pods/a/%00/explain/", 400, id="a pod that cannot be"),
        pytest.param("GET", "/api/v1/pods/team-a/p/explain/", 404, id="a pod nobody knows"),
        pytest.param("DELETE", "/api/v1/claims/a/%00/", 400, id="deleting what cannot be"),
        pytest.param("GET", "/api/v1/claims/?namespace=%00", 400, id="NUL in a filter"),
        pytest.param("GET", "/api/v1/claims/?phase=Maybe", 400, id="unknown phase"),
        pytest.param("GET", "/api/v1/allocations/?state=lost", 400, id="unknown state"),
        pytest.param("GET", "/api/v1/allocations/?live=perhaps", 400, id="neither true nor false"),
        pytest.param("GET", "/api/v1/events/?since=yesterday", 400, id="not a time"),
        pytest.param("GET", "/api/v1/events/?since=9999-12-31T23:59:59-14:00", 400, id="a time beyond the calendar"),
        pytest.param("GET", "/api/v1/events/?allocation=1", 400, id="not a uid"),
        pytest.param("GET", "/api/v1/devices/?healthy=2", 400, id="healthy neither true nor false"),
        pytest.param("DELETE", "/api/v1/allocations/00000000-0000-0000-0000-000000000000/?evict=2", 400, id="evict"),
        pytest.param("GET", "/api/v1/claims/?page_size=0", 400, id="page of nothing"),
        pytest.param("GET", "/api/v1/claims/?page_size=-1", 400, id="negative page"),
        pytest.param("GET", "/api/v1/claims/?page_size=x", 400, id="page size not a number"),
        pytest.param("GET", "/api/v1/claims/?page_size=" + "9" * 5000, 400, id="endless page size"),
        pytest.param("GET", "/api/v1/claims/?cursor=x", 400, id="cursor that is none"),
    ],
)
def test_odd_addresses_are_problems(admin, method, path, want):
    status, problem = admin.call(method, path)
    assert (status, problem["status"]) == (want, want), problem
    assert problem["title"]
    assert problem["detail"]


def test_a_missing_slash_leads_on(admin):
    response = admin.send("GET", "/api/v1/claims?name=x")
    assert (response.status_code, response["Location"]) == (302, "/api/v1/claims/?name=x")
    assert admin.call("POST", "/api/v1/claims", claim_manifest())[0] == 404


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("/api/v1/models/a%3Fb", "/api/v1/models/a%3Fb/", id="a question mark"),
        pytest.param("/api/v1/models/a%23b", "/api/v1/models/a%23b/", id="a hash"),
        pytest.param("/api/v1/models/50%25", "/api/v1/models/50%25/", id="a percent sign"),
        pytest.param("/api/v1/models/%C3%A4?a=%23", "/api/v1/models/%C3%A4/?a=%23", id="a letter, and a query"),
        pytest.param("/api/v1/models//evil.example", "/api/v1/models//evil.example/", id="two slashes"),
    ],
)
def test_a_missing_slash_keeps_the_address(admin, path, want):
    """VIEW-5 what was quoted stays quoted, and the redirect stays under /api/."""
    response = admin.send("GET", path)
    assert (response.status_code, response["Location"]) == (302, want)


@pytest.mark.parametrize(
    "path", ["//evil.example", "/api//evil.example", "/api/v1//evil.example", "//evil.example/api/v1/nodes"]
)
def test_a_missing_slash_leads_nowhere_else(admin, path):
    """VIEW-6 no redirect to another host."""
    assert not admin.send("GET", path).headers.get("Location", "/").startswith(("//", "http"))


def test_a_fault_of_ours_is_reported_without_its_inside(admin, monkeypatch):
    def fault(**_):
        raise RuntimeError("secret")

    monkeypatch.setattr("gpuplane.rest.manifests.manifest_list", fault)
    status, problem = admin.get("claims/")
    assert status == 500
    assert "secret" not in json.dumps(problem)
