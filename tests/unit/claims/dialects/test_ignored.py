"""Names that other schedulers go by and gpuplane does not: one table, told where a pod has them."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import claims.admission
import claims.dialects
import kube.keys
from claims.dialects.claim_manifest import ClaimDevices, ClaimSpec
from claims.dialects.ignored import IGNORED, Place, ignored_by, sentences
from claims.dialects.parse import is_request_resource, parse_pod
from claims.dialects.registry import REQUEST_ANNOTATIONS
from claims.dialects.request import DeviceRequest
from kube.objects import Pod

ROOT = Path(__file__).resolve().parents[4]
ROOMS = ("access", "agent", "allocations", "audit", "claims", "gpuplane", "kube", "nodes", "simulator")
TABLE = ROOT / "claims" / "dialects" / "ignored.py"


def pod(
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    init: dict[str, Any] | None = None,
) -> Pod:
    containers = {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]}
    if init:
        containers["initContainers"] = [{"name": "first", "resources": {"requests": init}}]
    return msgspec.convert(
        {"metadata": {"name": "p", "annotations": annotations, "labels": labels}, "spec": containers}, Pod
    )


def constants() -> Iterator[str]:
    """Every text that the dialects, admission and the names shared with the cluster keep as a constant."""
    modules = [kube.keys]
    for package in (claims.dialects, claims.admission):
        modules += [
            importlib.import_module(one.name)
            for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
            if one.name != "claims.dialects.ignored"
        ]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, str):
                yield value
            elif isinstance(value, (set, frozenset, tuple, list, dict)):
                yield from (one for one in value if isinstance(one, str))


def matches(row: str, name: str) -> bool:
    return name.startswith(row.removesuffix("*")) if row.endswith("*") else name == row


def test_a_name_that_is_honoured_does_not_stand_in_the_table() -> None:
    """Neither by a constant of the code, nor by a name that asks for devices, nor anywhere in the sources."""
    honoured = set(constants())
    assert {"scheduling.koordinator.sh/device-joint-allocate", "nvidia.com/use-gputype", "gpu-fraction"} <= honoured
    for row in IGNORED:
        assert not [name for name in honoured if matches(row.name, name)], row
        assert row.name not in REQUEST_ANNOTATIONS, row
        assert row.place is Place.ANNOTATION or not is_request_resource(row.name), row
    sources = {path: path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py") if path != TABLE}
    assert not [(row.name, path) for row in IGNORED for path, text in sources.items() if f'"{row.name}"' in text]


def test_sentences_are_as_short_as_warnings_are_advised_to_be() -> None:
    told = [row.sentence for row in IGNORED]
    assert max(map(len, told)) <= 120
    assert sum(map(len, told)) <= 4096
    assert len({(row.place, row.name) for row in IGNORED}) == len(IGNORED)
    assert all(text.isprintable() and text.isascii() for text in told)


@pytest.mark.parametrize("row", IGNORED, ids=lambda row: f"{row.place} {row.name}")
def test_each_is_found_where_it_stands_and_nowhere_else(row: Any) -> None:
    """Each row, on a pod of ours, is told with its own sentence."""
    name = f"{row.name.removesuffix('*')}main.gpu-memory.request" if row.name.endswith("*") else row.name
    value = {name: "1"}
    having = {
        Place.ANNOTATION: pod(annotations=value),
        Place.LABEL: pod(labels=value),
        Place.RESOURCE: pod(limits=value),
    }
    for place, one in having.items():
        twin = any(other.name == row.name and other.place is place for other in IGNORED)
        assert sentences(ignored_by(one)) == ([row.sentence] if place is row.place else []) or twin
    assert sentences(ignored_by(having[row.place])) == [row.sentence]


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        pytest.param(pod(limits={"nvidia.com/gpu": 1}), (), id="nothing is ignored"),
        pytest.param(
            pod(
                limits={"nvidia.com/gpu": 1}, annotations={"nvidia.com/vgpu-mode": "mig", "nvidia.com/use-gputype": "A"}
            ),
            ("annotation:nvidia.com/vgpu-mode",),
            id="beside one that is honoured",
        ),
        pytest.param(
            pod(limits={"koordinator.sh/gpu": 50}, labels={"koordinator.sh/gpu-isolation-provider": "HAMi-core"}),
            ("label:koordinator.sh/gpu-isolation-provider",),
            id="a label",
        ),
        pytest.param(
            pod(limits={"nvidia.com/gpumem": 100}, init={"nvidia.com/priority": 1}),
            ("resource:nvidia.com/priority",),
            id="a resource of an init container",
        ),
        pytest.param(
            pod(annotations={"gpu.scheduling/claim": "c", "pod-group-name": "g", "kai.scheduler/topology": "t"}),
            ("annotation:kai.scheduler/topology", "annotation:pod-group-name"),
            id="two, sorted",
        ),
        pytest.param(
            pod(
                annotations={
                    "gpu-fraction": "0.5",
                    "nvidia.com/container.main.gpu-memory.request": "1Gi",
                    "nvidia.com/container.side.gpu-memory.limit": "1Gi",
                }
            ),
            ("annotation:nvidia.com/container.*",),
            id="names that begin alike are told once",
        ),
    ],
)
def test_a_request_carries_what_was_ignored(asked: Pod, want: Any) -> None:
    """So that whoever shows the request later can tell it, without the pod."""
    request = parse_pod(asked, find_claim=lambda _namespace, _name: ClaimSpec(devices=ClaimDevices(count=1)))
    assert isinstance(request, DeviceRequest)
    assert request.ignored == want
    assert msgspec.convert(msgspec.to_builtins(request), DeviceRequest) == request


def test_a_row_that_left_the_table_is_reported_no_more() -> None:
    assert sentences(("annotation:once-ignored",)) == []
