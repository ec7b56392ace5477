import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.admission import ReviewInvalid, allowed, decode_review, encode_review, forbidden, invalid

REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "jane", "uid": "1", "groups": ["system:authenticated"], "extra": {"a": ["b"]}},
        "object": {"metadata": {"name": "p"}},
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions"},
    },
}


def body(**changes: Any) -> Any:
    return json.dumps(REVIEW | {"request": REVIEW["request"] | changes}).encode()


def test_a_review_is_decoded():
    request = decode_review(body())
    assert request.uid == REVIEW["request"]["uid"]
    assert request.user_info.username == "jane"
    assert (request.kind.kind, request.operation, request.namespace) == ("Pod", "CREATE", "team")
    assert json.loads(bytes(request.object)) == {"metadata": {"name": "p"}}
    assert bytes(request.old_object) == b"null"


def test_answers_carry_the_uid_and_a_base64_patch():
    """CLAIM-7 the answer is an AdmissionReview v1 with the request's uid and a JSONPatch in base64."""
    request = decode_review(body())
    patch = [{"op": "add", "path": "/spec/schedulerName", "value": "gpu-scheduler"}]
    answer = json.loads(encode_review(allowed(request, patch=patch, warnings=["careful"])))
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    response = answer["response"]
    assert json.loads(base64.b64decode(response.pop("patch"))) == patch
    assert response == {"uid": request.uid, "allowed": True, "patchType": "JSONPatch", "warnings": ["careful"]}
    assert json.loads(encode_review(allowed(request)))["response"] == {"uid": request.uid, "allowed": True}
    for refuse, code, reason in ((invalid, 422, "Invalid"), (forbidden, 403, "Forbidden")):
        response = json.loads(encode_review(refuse(request, "no")))["response"]
        assert response == {
            "uid": request.uid,
            "allowed": False,
            "status": {"code": code, "message": "no", "reason": reason},
        }


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"\xff"}}',
            id="bad UTF-8 inside",
        ),
        pytest.param(b"[" * 200_000, id="deep"),
        pytest.param(b'{"request":' + b"[" * 200_000, id="deep inside"),
        pytest.param(b"[]", id="a list"),
        pytest.param(json.dumps(REVIEW | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(), id="another version"),
        pytest.param(json.dumps(REVIEW | {"kind": "Pod"}).encode(), id="another kind"),
        pytest.param(json.dumps(REVIEW | {"request": None}).encode(), id="no request"),
        pytest.param(body(uid=""), id="empty uid"),
        pytest.param(body(uid=5), id="uid is a number"),
        pytest.param(body(uid="a b"), id="uid with a space"),
        pytest.param(body(userInfo={"username": 5}), id="username is a number"),
        pytest.param(body(operation=None), id="operation is null"),
    ],
)
def test_other_bodies_are_refused(bad):
    with pytest.raises(ReviewInvalid):
        decode_review(bad)


@given(st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_nothing_raises_anything_else(bad):
    with pytest.raises(ReviewInvalid):
        decode_review(bad)
