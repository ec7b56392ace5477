"""JSONPatch as an API server applies it."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.jsonpatch import BadPatch, apply_patch


@pytest.mark.parametrize(
    ("document", "patch", "want"),
    [
        pytest.param({}, [], {}, id="nothing"),
        pytest.param({"a": {}}, [{"op": "add", "path": "/a/b", "value": 1}], {"a": {"b": 1}}, id="add a field"),
        pytest.param({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}, id="insert"),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}, id="append"),
        pytest.param({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}, id="replace"),
        pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}, id="remove from a list"),
        pytest.param({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}, id="test that holds"),
        pytest.param(
            {"m": {}},
            [{"op": "add", "path": "/m/gpu.scheduling~1claim~0x", "value": "c"}],
            {"m": {"gpu.scheduling/claim~x": "c"}},
            id="escaped key",
        ),
        pytest.param(
            {},
            [{"op": "add", "path": "/a", "value": {}}, {"op": "add", "path": "/a/b", "value": 1}],
            {"a": {"b": 1}},
            id="one builds on the other",
        ),
    ],
)
def test_patches(document: dict[str, Any], patch: list[dict[str, Any]], want: dict[str, Any]) -> None:
    before = repr(document)
    assert apply_patch(document, patch) == want
    assert repr(document) == before


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "add", "path": "/no/where", "value": 1}, id="a parent that is not there"),
        pytest.param({"op": "replace", "path": "/x", "value": 1}, id="replace what is not there"),
        pytest.param({"op": "remove", "path": "/l/7"}, id="remove beyond the list"),
        pytest.param({"op": "add", "path": "/l/7", "value": 1}, id="insert beyond the list"),
        pytest.param({"op": "add", "path": "l", "value": 1}, id="no pointer"),
        pytest.param({"op": "add", "path": "", "value": 1}, id="the whole object"),
        pytest.param({"op": "test", "path": "/a", "value": 2}, id="test that fails"),
        pytest.param({"op": "move", "path": "/a", "from": "/l"}, id="an operation webhooks do not use"),
        pytest.param({"path": "/a"}, id="no operation"),
    ],
)
def test_patches_that_do_not_apply(operation: dict[str, Any]) -> None:
    with pytest.raises(BadPatch):
        apply_patch({"a": 1, "l": [1]}, [operation])
