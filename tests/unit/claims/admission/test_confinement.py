from typing import Any

import msgspec
import pytest

from claims.admission.confinement import is_confined
from kube.objects import Pod

CUDA, NVIDIA = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
VISIBLE = "gpu.scheduling/visible-devices"


def ref(name: str, key: str = VISIBLE) -> Any:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}


def literal(name: str, value: str) -> Any:
    return {"name": name, "value": value}


def confined(*env: Any, annotations: Any = None, init: Any = None) -> bool:
    spec = {"containers": [{"name": "main", "env": list(env)}], "initContainers": init}
    return is_confined(msgspec.convert({"metadata": {"annotations": annotations}, "spec": spec}, Pod))


@pytest.mark.parametrize(
    ("env", "want"),
    [
        pytest.param([ref(CUDA), ref(NVIDIA)], True, id="both are ours"),
        pytest.param([ref(NVIDIA)], True, id="the runtime's alone"),
        pytest.param(
            [ref(CUDA, f"{VISIBLE}.main"), ref(NVIDIA, f"{VISIBLE}.main")], True, id="the container's own key"
        ),
        pytest.param([ref(CUDA, f"{VISIBLE}.other"), ref(NVIDIA, f"{VISIBLE}.other")], False, id="another container's"),
        pytest.param([ref(CUDA)], False, id="CUDA's alone: the runtime may show every GPU"),
        pytest.param([ref(CUDA), literal(NVIDIA, "all")], False, id="the runtime is told to show all"),
        pytest.param([ref(NVIDIA), literal(CUDA, "0")], False, id="CUDA's is the user's own"),
        pytest.param([ref(NVIDIA), ref(CUDA), literal(NVIDIA, "all")], False, id="of a name twice the last counts"),
        pytest.param([literal(NVIDIA, "all"), ref(NVIDIA), ref(CUDA)], True, id="of a name twice the last is ours"),
        pytest.param([literal(NVIDIA, "GPU-0"), literal(CUDA, "GPU-0")], True, id="the value that the pod carries"),
        pytest.param([literal(NVIDIA, "GPU-1"), literal(CUDA, "GPU-0")], False, id="another value than it carries"),
        pytest.param([], False, id="no env"),
    ],
)
def test_a_pod_that_sees_its_own_devices_only(env, want):
    """CLAIM-7 unconfined is what has not both variables from us, whatever stands before the last of a name."""
    assert confined(*env, annotations={VISIBLE: "GPU-0"}) is want


def test_every_container_has_to_be_confined():
    """CLAIM-7 an init container counts too."""
    ours = [ref(CUDA), ref(NVIDIA)]
    assert confined(*ours, init=[{"name": "first", "env": ours}])
    assert not confined(*ours, init=[{"name": "first"}])
