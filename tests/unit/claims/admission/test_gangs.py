"""What admission does with GpuGangs."""

from __future__ import annotations

from typing import Any

import pytest

from claims import kinds
from claims.admission.validate_manifest import validate_manifest
from tests.unit.claims.admission.reviews import review

LONGEST = f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 61}"
"""A DNS subdomain of 253 characters."""


def created(topology: Any) -> Any:
    manifest = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuGang",
        "metadata": {"name": "ring", "namespace": "team"},
        "spec": {"minMember": 2, "topology": topology},
    }
    return validate_manifest(kinds.GANG, review(manifest, kind="GpuGang"))


@pytest.mark.parametrize("side", ["required", "preferred"])
@pytest.mark.parametrize(
    ("key", "want"),
    [
        pytest.param("rack", "", id="a name"),
        pytest.param("kubernetes.io/hostname", "", id="with a prefix"),
        pytest.param("Rack_1.a", "", id="upper case and signs"),
        pytest.param(f"{LONGEST}/{'n' * 63}", "", id="the longest"),
        pytest.param("not a label!", "label-key", id="spaces"),
        pytest.param("-rack", "label-key", id="begins with a sign"),
        pytest.param("n" * 64, "label-key", id="too long a name"),
        pytest.param("example.com/", "label-key", id="a prefix alone"),
        pytest.param("/rack", "dns-subdomain", id="an empty prefix"),
        pytest.param("Example.com/rack", "dns-subdomain", id="a prefix in upper case"),
        pytest.param("a/b/rack", "dns-subdomain", id="two prefixes"),
        pytest.param(f"{LONGEST}d/rack", "dns-subdomain", id="too long a prefix"),
    ],
)
def test_a_topology_names_a_label_that_nodes_can_have(side: str, key: str, want: str) -> None:
    """QUEUE-4 a gang by a label that no node can have would wait for ever."""
    answer = created({side: key})
    assert answer.allowed is (want == "")
    if want:
        assert f"spec.topology.{side}" in answer.status.message
        assert f"rule {want}" in answer.status.message
