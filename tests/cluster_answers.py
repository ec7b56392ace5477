"""What a well-formed answer of the cluster's endpoints is, key for key."""

from __future__ import annotations

import base64
import json
from typing import Any

FILTER_KEYS = {"NodeNames", "Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}


def strictly(answer: bytes) -> Any:
    """JSON as Go reads it: UTF-8, no NaN."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    # A number that came in too long for Python goes out with its node as it came.
    return json.loads(
        answer.decode(), parse_constant=refuse, parse_int=lambda digits: int(digits) if len(digits) < 40 else digits
    )


def well_formed_filter(answer: bytes) -> dict[str, Any]:
    """An ExtenderFilterResult: whoever is not passed has a reason, or Error has one."""
    result = strictly(answer)
    assert set(result) == FILTER_KEYS
    assert isinstance(result["Error"], str)
    passed = result["NodeNames"]
    if result["Nodes"] is not None:
        assert passed is None
        assert isinstance(result["Nodes"]["items"], list)
    else:
        assert isinstance(passed, list)
        assert all(isinstance(name, str) for name in passed)
    for refused in (result["FailedNodes"], result["FailedAndUnresolvableNodes"]):
        assert all(isinstance(reason, str) and reason for reason in refused.values())
    if result["Error"]:
        assert not passed
        assert not result["FailedNodes"]
        assert not result["FailedAndUnresolvableNodes"]
    return dict(result)


def well_formed_scores(answer: bytes) -> list[dict[str, Any]]:
    """A HostPriorityList: a bare array, scores 0 to 10."""
    result = strictly(answer)
    assert isinstance(result, list)
    for entry in result:
        assert set(entry) == {"Host", "Score"}
        assert isinstance(entry["Host"], str)
        assert type(entry["Score"]) is int
        assert 0 <= entry["Score"] <= 10
    return result


def well_formed_bind(answer: bytes) -> str:
    """An ExtenderBindingResult."""
    result = strictly(answer)
    assert set(result) == {"Error"}
    assert isinstance(result["Error"], str)
    return str(result["Error"])


def well_formed_preempt(answer: bytes) -> dict[str, Any]:
    """An ExtenderPreemptionResult in the Meta form; numbers fit Go's int64."""
    result = strictly(answer)
    assert set(result) == {"NodeNameToMetaVictims"}
    for victims in result["NodeNameToMetaVictims"].values():
        assert set(victims) == {"Pods", "NumPDBViolations"}
        assert -(2**63) <= victims["NumPDBViolations"] < 2**63
        assert all(set(pod) == {"UID"} for pod in victims["Pods"])
    return dict(result["NodeNameToMetaVictims"])


def well_formed_review(answer: bytes) -> dict[str, Any]:
    """An AdmissionReview v1; a refusal has a message, a patch is a JSONPatch in base64."""
    result = strictly(answer)
    assert (result["apiVersion"], result["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = result["response"]
    assert isinstance(response["uid"], str)
    assert isinstance(response["allowed"], bool)
    if not response["allowed"]:
        assert response["status"]["message"]
        assert "patch" not in response
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(response["patch"]))
        assert patch
        assert all(step["op"] in {"add", "replace", "remove"} for step in patch)
    return response
