"""The manifest of a reservation pod, and its name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.names import InvalidName, check_label
from kube.reservation_pod import reservation_pod, reservation_pod_name

NEEDED: dict[str, Any] = {
    "namespace": "gpuplane-reservation",
    "name": "gpu-reservation-n1-g1",
    "node": "n1",
    "group": "g1",
    "gpus": 1,
    "image": "gpuplane:1",
}


def _made(**given: Any) -> dict[str, Any]:
    return reservation_pod(**{**NEEDED, **given})


def test_the_whole_pod() -> None:
    """SHARE-3 everything that the source's reservation pod has, in a pod of the level `restricted`."""
    assert _made() == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "gpu-reservation-n1-g1",
            "namespace": "gpuplane-reservation",
            "labels": {"app": "gpuplane-reservation", "runai-gpu-group": "g1"},
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "nodeName": "n1",
            "serviceAccountName": "gpuplane-reservation",
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 2,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "reservation",
                    "image": "gpuplane:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-m", "agent.reserve"],
                    "env": [
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                    ],
                    "resources": {
                        "limits": {"nvidia.com/gpu": "1", "memory": "128Mi"},
                        "requests": {"nvidia.com/gpu": "1", "cpu": "1m", "memory": "10Mi"},
                    },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("given", "want_spec"),
    [
        pytest.param({"runtime_class": "nvidia"}, {"runtimeClassName": "nvidia"}, id="runtime class"),
        pytest.param(
            {"priority_class": "system-node-critical"},
            {"priorityClassName": "system-node-critical"},
            id="priority class",
        ),
        pytest.param(
            {"pull_secrets": ("one", "two")},
            {"imagePullSecrets": [{"name": "one"}, {"name": "two"}]},
            id="pull secrets",
        ),
        pytest.param({"tolerations": ()}, {"tolerations": []}, id="no tolerations"),
        pytest.param(
            {"tolerations": ({"key": "gpu", "operator": "Exists"},)},
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            id="tolerations of its own",
        ),
        pytest.param({"service_account": "other"}, {"serviceAccountName": "other"}, id="service account"),
        pytest.param({"node": "ip-10-0-0-1.ec2.internal"}, {"nodeName": "ip-10-0-0-1.ec2.internal"}, id="node"),
    ],
)
def test_options_change_their_field_and_nothing_else(given: dict[str, Any], want_spec: dict[str, Any]) -> None:
    """SHARE-3"""
    assert _made(**given) == {**_made(), "spec": {**_made()["spec"], **want_spec}}


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_number_of_gpus_is_limit_and_request(gpus: int) -> None:
    """SHARE-3 several whole devices are one pod."""
    resources = _made(gpus=gpus)["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == str(gpus)


@pytest.mark.parametrize(
    ("given", "want_error"),
    [
        pytest.param({"gpus": 0}, ValueError, id="no GPU"),
        pytest.param({"gpus": -1}, ValueError, id="fewer than none"),
        pytest.param({"group": ""}, InvalidName, id="no group"),
        pytest.param({"group": "a" * 64}, InvalidName, id="group too long for a label"),
        pytest.param({"group": "a/b"}, InvalidName, id="group with a slash"),
    ],
)
def test_what_no_pod_can_be_is_refused(given: dict[str, Any], want_error: type[Exception]) -> None:
    with pytest.raises(want_error):
        _made(**given)


@pytest.mark.parametrize(
    ("node", "group", "want_name"),
    [
        pytest.param("n1", "g1", "gpu-reservation-n1-g1", id="plain"),
        pytest.param("gpu-node-7", "abc45", "gpu-reservation-gpu-node-7-abc45", id="node with dashes"),
        pytest.param("n" * 42, "abcd", f"gpu-reservation-{'n' * 42}-abcd", id="63 characters"),
        pytest.param("n" * 42, "abcde", f"gpu-reservation-{'n' * 25}-xde61fea0b20905324acd", id="64 characters"),
        pytest.param("a.b", "g", "gpu-reservation-a-b-x08e2e675304e25119782", id="node with a dot"),
        pytest.param("a-b", "c-d", "gpu-reservation-a-b-x5aefcd910e9174377253", id="group with a dash"),
    ],
)
def test_names(node: str, group: str, want_name: str) -> None:
    """SHARE-3 the name is deterministic, today and in a later version."""
    assert reservation_pod_name(node, group) == want_name


NODES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True)
GROUPS = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)


@given(st.tuples(NODES, GROUPS), st.tuples(NODES, GROUPS))
def test_two_groups_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    """SHARE-3 and each is a DNS-1123 label."""
    names = {check_label(reservation_pod_name(*pair)) for pair in (one, other)}
    assert len(names) == len({one, other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("a-b", "c"), ("a", "b-c"), id="where the node ends"),
        pytest.param(("a.b", "c"), ("a-b", "c"), id="a dot and a dash"),
        pytest.param(("a", "B"), ("a", "b"), id="capitals"),
        pytest.param(("n" * 60, "a"), ("n" * 61, "a"), id="cut nodes"),
        pytest.param(
            ("a.b", "c"), ("a-b", reservation_pod_name("a.b", "c").rpartition("-")[2]), id="the hash as group"
        ),
    ],
)
def test_near_names_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    """SHARE-3"""
    assert reservation_pod_name(*one) != reservation_pod_name(*other)
