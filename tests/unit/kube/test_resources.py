from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.resources import GPU_CLAIMS, LEASES, NODES, PODS, Resource


@pytest.mark.parametrize(
    ("resource", "where", "want"),
    [
        pytest.param(PODS, {}, "/api/v1/pods", id="pods of all namespaces"),
        pytest.param(PODS, {"namespace": "a"}, "/api/v1/namespaces/a/pods", id="pods of one"),
        pytest.param(
            PODS,
            {"namespace": "a", "name": "p", "subresource": "binding"},
            "/api/v1/namespaces/a/pods/p/binding",
            id="a subresource",
        ),
        pytest.param(NODES, {"name": "n.1"}, "/api/v1/nodes/n.1", id="a node"),
        pytest.param(
            LEASES, {"namespace": "a", "name": "l"}, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", id="a group"
        ),
        pytest.param(
            GPU_CLAIMS, {"namespace": "a"}, "/apis/gpu.scheduling/v1/namespaces/a/gpuclaims", id="our own kind"
        ),
    ],
)
def test_path(resource: Resource, where: dict[str, str], want: str) -> None:
    assert resource.path(**where) == want


@pytest.mark.parametrize(
    ("resource", "where"),
    [
        pytest.param(NODES, {"namespace": "a"}, id="nodes have no namespace"),
        pytest.param(PODS, {"name": "p"}, id="a pod without namespace"),
        pytest.param(PODS, {"namespace": "a", "subresource": "status"}, id="a subresource of nothing"),
        pytest.param(PODS, {"namespace": "a", "name": ".."}, id="a way up"),
        pytest.param(PODS, {"namespace": "", "name": "p"}, id="an empty segment"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(resource: Resource, where: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        resource.path(**where)


@given(st.text(min_size=1).filter(lambda text: text not in (".", "..")))
def test_no_name_leaves_its_segment(name: str) -> None:
    path = PODS.path(namespace="a", name=name.encode("utf-8", "replace").decode())
    assert path.count("/") == 6
    assert not set(path) & set("?#%") - {"%"}
