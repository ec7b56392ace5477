"""Pods by `nvidia.com/gpu`: whether a kubelet may choose their devices, and what their env is then."""

from __future__ import annotations

from typing import Any

import pytest

from claims.admission.mutate import mutate_pod
from tests.unit.claims.admission.reviews import CLAIM, CUDA, NVIDIA, TRUST, literal, operations, patched, pod, review


def native_pod(env: Any = (), selector: Any = None) -> Any:
    container: Any = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    if env:
        container["env"] = [dict(one) for one in env]
    spec: Any = {"containers": [container]}
    if selector is not None:
        spec["nodeSelector"] = dict(selector)
    return {"metadata": {"name": "p"}, "spec": spec}


PLUGIN, EXCLUSIVE = ({"gpu.scheduling/mode": mode} for mode in ("device-plugin", "exclusive"))
ELSEWHERE = {"zone": "a"}


@pytest.mark.parametrize(
    ("selector", "mode", "left_to_kubelet"),
    [
        (None, "exclusive", False),
        (None, "device-plugin", True),
        (PLUGIN, "exclusive", True),
        (PLUGIN, "device-plugin", True),
        (EXCLUSIVE, "exclusive", False),
        (EXCLUSIVE, "device-plugin", False),
        (ELSEWHERE, "exclusive", False),
        (ELSEWHERE, "device-plugin", True),
    ],
)
def test_pods_for_nodes_where_kubelets_choose(selector, mode, left_to_kubelet):
    """DEV-8 their env is the device plugin's: ours would win over it.

    They go to no other node, and nobody widens what they see.
    """
    own = [literal(NVIDIA, "all"), literal("OTHER", "x"), literal(CUDA, "3")]
    response = mutate_pod(review(native_pod(own, selector)), trust=TRUST, native_mode=mode)
    after = patched(native_pod(own, selector), response)
    env = after["spec"]["containers"][0]["env"]
    again = mutate_pod(review(after), trust=TRUST, native_mode=mode)
    assert operations(again) == []
    if left_to_kubelet:
        assert env == [literal("OTHER", "x")]
        assert after["spec"]["nodeSelector"] == {**(selector or {}), **PLUGIN}
    else:
        assert {one["name"] for one in env} == {CUDA, NVIDIA, "OTHER"}
        assert literal(NVIDIA, "all") not in env
        assert after["spec"].get("nodeSelector") == selector


@pytest.mark.parametrize("selector", [None, PLUGIN], ids=["selects nothing", "selects such nodes"])
def test_pods_that_say_which_gpus_are_not_for_kubelets(selector):
    """DEV-8 a kubelet cannot keep to HAMi's annotations: such a pod is treated as for nodes in mode exclusive."""
    obj = native_pod([literal(NVIDIA, "all")], selector)
    obj["metadata"]["annotations"] = {"nvidia.com/use-gputype": "H100"}
    after = patched(obj, mutate_pod(review(obj), trust=TRUST, native_mode="device-plugin"))
    assert {one["name"] for one in after["spec"]["containers"][0]["env"]} == {CUDA, NVIDIA}
    assert after["spec"].get("nodeSelector") == selector


def test_other_dialects_never_go_where_kubelets_choose():
    """DEV-8 shares and claims need reservation pods there; until then the setting is for pods by nvidia.com/gpu."""
    obj = pod(annotations=CLAIM)
    response = mutate_pod(review(obj), trust=TRUST, native_mode="device-plugin")
    after = patched(pod(annotations=CLAIM), response)
    assert "nodeSelector" not in after["spec"]
    assert [one["name"] for one in after["spec"]["containers"][0]["env"]] == [CUDA, NVIDIA]
