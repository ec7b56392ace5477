"""Koordinator's annotation that joins device types."""

from typing import Any

import msgspec
import pytest

from claims.dialects.claim_manifest import ClaimDevices, ClaimSpec
from claims.dialects.parse import parse_pod
from claims.dialects.request import DeviceRequest, Joint, Refusal
from kube.keys import CLAIM, JOINT_ALLOCATE
from kube.objects import Pod

GPU_AND_NIC = {"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "100"}


def parse(text: str, limits: dict[str, str] | None = None, **annotations: str) -> Any:
    manifest = {
        "metadata": {"name": "p", "namespace": "team", "annotations": {JOINT_ALLOCATE: text, **annotations}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": GPU_AND_NIC if limits is None else limits}}]},
    }
    claimed = ClaimSpec(devices=ClaimDevices(count=1))
    return parse_pod(msgspec.convert(manifest, Pod), find_claim=lambda _namespace, _name: claimed)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param('{"deviceTypes": ["gpu", "rdma"]}', Joint(types=("gpu", "rdma")), id="preferred"),
        pytest.param(
            '{"deviceTypes": ["gpu", "rdma"], "requiredScope": ""}', Joint(types=("gpu", "rdma")), id="empty scope"
        ),
        pytest.param(
            '{"deviceTypes": ["rdma", "gpu"], "requiredScope": "SamePCIe"}',
            Joint(types=("rdma", "gpu"), required=True),
            id="required",
        ),
        pytest.param(
            '{"deviceTypes": ["gpu", "fpga", "rdma"]}',
            Joint(types=("gpu", "rdma")),
            id="a type not asked for is dropped",
        ),
        pytest.param(
            '{"deviceTypes": ["gpu", "rdma", "gpu"]}', Joint(types=("gpu", "rdma")), id="a type twice counts once"
        ),
        pytest.param(
            '{"deviceTypes": ["gpu", "rdma"], "later": 1}', Joint(types=("gpu", "rdma")), id="a field not known"
        ),
        pytest.param(
            '{"DeviceTypes": ["gpu", "rdma"], "requiredscope": "SamePCIe"}',
            Joint(types=("gpu", "rdma"), required=True),
            id="names in any case, as Go reads them",
        ),
    ],
)
def test_what_belongs_together(text: str, want: Joint) -> None:
    """DEV-10 the types, and whether it has to be."""
    found = parse(text)
    assert isinstance(found, DeviceRequest)
    assert found.joint == want
    assert {ask.type for ask in found.asks} == {"gpu", "rdma"}


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        pytest.param("{}", None, id="no types"),
        pytest.param("null", None, id="nothing"),
        pytest.param('{"deviceTypes": null}', None, id="null"),
        pytest.param('{"deviceTypes": []}', None, id="none"),
        pytest.param('{"deviceTypes": ["gpu"]}', None, id="one type"),
        pytest.param('{"deviceTypes": ["gpu"], "requiredScope": "SamePCIe"}', None, id="one type, required"),
        pytest.param('{"deviceTypes": ["gpu", "gpu"]}', None, id="one type twice"),
        pytest.param('{"deviceTypes": ["gpu", "fpga"]}', None, id="one type beside one not asked for"),
        pytest.param('{"deviceTypes": ["fpga", "xpu"]}', None, id="types not asked for"),
        pytest.param('{"deviceTypes": ["gpu", "rdma"]}', {"nvidia.com/gpu": "1"}, id="native alone"),
    ],
)
def test_what_says_nothing_is_dropped(text: str, limits: dict[str, str] | None) -> None:
    """DEV-10 where fewer than two of the types are asked for, the pod is placed as one without the annotation."""
    found = parse(text, limits)
    assert isinstance(found, DeviceRequest)
    assert found.joint is None


@pytest.mark.parametrize(
    ("text", "limits", "rule"),
    [
        pytest.param("", None, "joint-json", id="empty"),
        pytest.param("gpu,rdma", None, "joint-json", id="no JSON"),
        pytest.param("[" * 3000, None, "joint-json", id="nested"),
        pytest.param("[]", None, "joint-json", id="a list"),
        pytest.param('{"deviceTypes": [1]}', None, "joint-json", id="a number"),
        pytest.param(
            '{"deviceTypes": ["gpu", "rdma"], "requiredScope": 1}', None, "joint-json", id="a scope in numbers"
        ),
        pytest.param('{"deviceTypes": "gpu"}', None, "joint-json", id="a text"),
        pytest.param('{"deviceTypes": ["gpu", "rdma"]}' + " " * 5000, None, "joint-json", id="long"),
        pytest.param(
            '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SameNode"}', None, "joint-scope", id="another scope"
        ),
    ],
)
def test_what_cannot_be_joined(text: str, limits: dict[str, str] | None, rule: str) -> None:
    """DEV-10 refused, with the rule and the annotation named."""
    found = parse(text, limits)
    assert isinstance(found, Refusal)
    assert found.rule == rule
    assert JOINT_ALLOCATE in found.field


def test_a_claim_asks_for_one_type() -> None:
    """DEV-10 a claim has one type, so there is nothing to join with it."""
    found = parse('{"deviceTypes": ["gpu", "rdma"]}', {}, **{CLAIM: "one"})
    assert isinstance(found, DeviceRequest)
    assert found.joint is None
