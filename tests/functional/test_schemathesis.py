"""Fuzzing of every documented operation: what is served is what the OpenAPI document says.

Runs in the process, over WSGI, against the database of the test. Bounded, so that `make test` stays short.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from drf_spectacular.generators import SchemaGenerator
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from access.choices import Role
from allocations import fleet
from autoscaling.models import ScalingRequest
from gpuplane.rest.idempotency import HEADER
from inference.models import Slot
from storage.clock import database_now
from tests.exploring import examples
from tests.integration.rest.conftest import claim_manifest, inventory, person

EXAMPLES = 15
"""Requests an operation."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@lru_cache(maxsize=1)
def operations():
    """(method, path) → operation, of the document that is served."""
    document = SchemaGenerator().get_schema(public=True)
    schema = schemathesis.openapi.from_dict(document)
    schema.app = get_wsgi_application()
    found = {}
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # a document that does not parse fails here
        found[operation.method.upper(), operation.path] = operation
    return found


def test_the_document_is_served_and_valid(client):
    """VIEW-5 OpenAPI 3 at /api/schema/, pages at /api/docs/ from our own files."""
    response = client.get("/api/schema/")
    assert response.status_code == 200
    assert b"openapi: 3." in response.content
    page = client.get("/api/docs/")
    assert page.status_code == 200
    assert b"https://" not in page.content
    assert b"/static/drf_spectacular_sidecar/swagger-ui" in page.content


@pytest.mark.parametrize(("method", "path"), [pytest.param(*key, id=" ".join(key)) for key in operations()])
@pytest.mark.django_db
@pytest.mark.hypothesis
def test_every_operation_keeps_to_the_document(method, path):
    """VIEW-5 no request makes a fault, and every answer is one that the document describes."""
    fleet.forget()
    ada = person("ada", Role.ADMIN)
    ada.put("nodes/n1/inventory/", inventory())
    ada.post("claims/", claim_manifest())
    _, allocation = ada.post("allocations/", {"namespace": "team-a", "claim": "train"})
    known = {"namespace": "team-a", "name": "n1" if "/nodes/" in path else "train", "uid": allocation["uid"]}
    known["uuid"] = inventory()["devices"][0]["uuid"]
    now = database_now()
    known["id"] = known["pk"] = ScalingRequest.objects.create(pool="h100", shape="s", created_at=now, changed_at=now).pk
    ada.post("models/", {"name": "train", "runtime": "simulated", "memory": "1Gi"})
    slot = {
        "model_name": "train",
        "model_revision": 1,
        "gpus": [0],
        "memory": [1],
        "planned_at": now,
        "changed_at": now,
    }
    Slot.objects.create(id="warm", node="n1", **slot)
    ada.post("accounts/", {"username": "bob"})
    ada.post("teams/", {"name": "train"})
    known |= {"slot_id": "warm", "node": "n1", "username": "bob"}
    operation = operations()[method, path]

    @given(data=st.data())
    @examples(EXAMPLES)
    def fuzz(data):
        case = data.draw(operation.as_strategy())
        if case.path_parameters and data.draw(st.booleans(), label="an object that is there"):
            case.path_parameters = {key: known[key] for key in case.path_parameters}
        if case.headers and data.draw(st.booleans(), label="without a key"):
            case.headers.pop(HEADER, None)
        case.call_and_validate(headers=ada.headers, checks=CHECKS)

    fuzz()
    fleet.forget()
