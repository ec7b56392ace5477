"""HAMi's pods on nodes whose kubelet chooses GPUs: `nvidia.com/gpu` would get them GPUs from the device plugin as well,
so admission renames it, and those that came past it are kept off such nodes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from claims.admission.mutate import mutate_pod
from claims.admission.validate_pod import validate_pod
from claims.dialects.parse import parse_pod
from claims.dialects.request import DeviceAsk, DeviceRequest, Refusal
from kube.objects import Pod
from tests.unit.claims.admission.reviews import TRUST, operations, patched, review

PLUGIN, EXCLUSIVE = ({"gpu.scheduling/mode": mode} for mode in ("device-plugin", "exclusive"))
MI = 1 << 20


def hami(selector: Any = None, **amounts: str) -> dict[str, Any]:
    limits = {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": dict(limits)}}]}
    if selector is not None:
        spec["nodeSelector"] = selector
    return {"metadata": {"name": "p"}, "spec": spec}


def parsed(manifest: Any) -> Any:
    return parse_pod(msgspec.convert(manifest, Pod), find_claim=lambda _namespace, _name: None)


@pytest.mark.parametrize(
    ("selector", "mode", "want_renamed"),
    [
        pytest.param(PLUGIN, "exclusive", True, id="the pod selects such nodes"),
        pytest.param(None, "device-plugin", True, id="the cluster's nodes are such"),
        pytest.param(None, "exclusive", False, id="nodes where gpuplane owns the GPUs"),
        pytest.param(EXCLUSIVE, "device-plugin", False, id="the pod selects nodes where gpuplane owns the GPUs"),
    ],
)
def test_the_name_that_a_device_plugin_serves_is_replaced(selector: Any, mode: str, want_renamed: bool) -> None:
    """SHARE-3 DEV-3 the same request by a name that no kubelet serves; a second pass changes nothing."""
    pod = hami(selector, gpu="2", gpumem="3000")
    response = mutate_pod(review(pod), trust=TRUST, native_mode=mode)
    after = patched(pod, response)
    for part in ("limits", "requests"):
        amounts = after["spec"]["containers"][0]["resources"][part]
        assert amounts.get("gpu.scheduling/vgpu") == ("2" if want_renamed else None)
        assert amounts.get("nvidia.com/gpu") == (None if want_renamed else "2")
    assert operations(mutate_pod(review(after), trust=TRUST, native_mode=mode)) == []
    want = (DeviceAsk("gpu", 2, core_percent=0, memory_bytes=3000 * MI, container="main"),)
    for manifest in (pod, after):
        found = parsed(manifest)
        assert isinstance(found, DeviceRequest)
        assert (found.dialect, found.asks) == ("hami", want)


def test_both_names_are_refused() -> None:
    """DEV-3 how many GPUs it is for would be anybody's guess."""
    pod = hami(gpu="1", gpumem="3000")
    pod["spec"]["containers"][0]["resources"]["limits"]["gpu.scheduling/vgpu"] = "1"
    found = parsed(pod)
    assert isinstance(found, Refusal)
    assert found.rule == "hami-gpus-twice"


@pytest.mark.parametrize("part", ["limits", "requests"])
def test_both_names_stay_so_that_the_pod_is_refused(part: str) -> None:
    """DEV-3 renaming one of the two would leave its amount alone, and hide that the other was requested."""
    pod = hami(PLUGIN, gpu="2", gpumem="3000")
    pod["spec"]["containers"][0]["resources"][part]["gpu.scheduling/vgpu"] = "1"
    after = patched(pod, mutate_pod(review(pod), trust=TRUST))
    verdict: Any = validate_pod(review(after), trust=TRUST)
    assert not verdict.allowed
    assert "rule hami-gpus-twice" in verdict.status.message


def test_the_new_name_without_an_amount_is_replaced() -> None:
    """DEV-3 an amount of 0 requests nothing, so the pod names its GPUs once."""
    pod = hami(PLUGIN, gpu="2", gpumem="3000")
    pod["spec"]["containers"][0]["resources"]["limits"]["gpu.scheduling/vgpu"] = "0"
    after = patched(pod, mutate_pod(review(pod), trust=TRUST))
    assert after["spec"]["containers"][0]["resources"]["limits"]["gpu.scheduling/vgpu"] == "2"
    assert validate_pod(review(after), trust=TRUST).allowed
