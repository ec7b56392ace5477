"""Devices without pods, in queues: decided about at once, within what the queue deserves."""

from __future__ import annotations

from typing import Any

import pytest

from allocations import fleet
from claims.queues import DIRECTORY
from tests.integration.rest.conftest import claim_manifest, inventory

WANT = {"namespace": "team-a", "claim": "train"}


@pytest.fixture(autouse=True)
def two_gpus(admin: Any) -> Any:
    """A node of two GPUs, and the claim for one of them."""
    fleet.forget()
    DIRECTORY.forget()
    admin.put("nodes/n1/inventory/", inventory("n1"))
    admin.post("claims/", claim_manifest())
    yield
    DIRECTORY.forget()


def queue(admin: Any, name: str, **spec: Any) -> None:
    assert admin.post("queues/", {"metadata": {"name": name}, "spec": spec})[0] == 201
    DIRECTORY.forget()


def test_within_what_the_queue_deserves(admin: Any, operator: Any) -> None:
    """QUEUE-1 CLAIM-9 by `queue` in the body; a holder that cannot be evicted stays within deserved."""
    queue(admin, "desk", quotas=[{"deserved": 1}])
    assert operator.post("allocations/", {**WANT, "queue": "desk"})[0] == 201
    status, problem = operator.post("allocations/", {**WANT, "queue": "desk"})
    assert status == 409
    assert "queue desk holds 1 of the 1 GPUs that it deserves with pods that are not preemptible" in problem["detail"]
    assert admin.get("queues/desk/")[0] == 200


def test_by_namespace(admin: Any, operator: Any) -> None:
    """QUEUE-1 the namespace's queue admits it, named or not."""
    queue(admin, "team", namespaces=["team-a"], quotas=[{"deserved": 0}])
    assert operator.post("allocations/", WANT)[0] == 409


def test_of_others(admin: Any, operator: Any) -> None:
    """QUEUE-1 a queue of other teams, and one that is not there."""
    queue(admin, "theirs", namespaces=["team-b"], quotas=[{"deserved": 2}])
    for name, text in (("theirs", "is of other teams than namespace team-a"), ("nowhere", "does not exist")):
        status, problem = operator.post("allocations/", {**WANT, "queue": name})
        assert status == 409, problem
        assert text in problem["detail"]


def test_a_queue_where_there_are_none(operator: Any) -> None:
    """QUEUE-1 named, and nobody has made any."""
    status, problem = operator.post("allocations/", {**WANT, "queue": "desk"})
    assert (status, problem["detail"]) == (409, "queue desk does not exist")


def test_rules_over_rest(admin: Any, operator: Any) -> None:
    """QUEUE-1 cycles, unknown parents, namespaces in two queues, parents with children: refused with the rule."""
    queue(admin, "top", namespaces=["team-a"])
    queue(admin, "low", parent="top")
    for spec, rule in (
        ({"parent": "nowhere"}, "parent"),
        ({"namespaces": ["team-a"]}, "namespace"),
        ({"quotas": [{"deserved": -1}]}, "schema"),
        ({"quota": []}, "unknown-field"),
    ):
        status, problem = admin.post("queues/", {"metadata": {"name": "more"}, "spec": spec})
        assert (status, problem["rule"]) == (400, rule), problem
    status, problem = admin.put("queues/top/", {"metadata": {"name": "top"}, "spec": {"parent": "low"}})
    assert (status, problem["rule"]) == (400, "cycle")
    assert admin.delete("queues/top/")[0] == 409
    assert operator.post("queues/", {"metadata": {"name": "mine"}})[0] == 403
