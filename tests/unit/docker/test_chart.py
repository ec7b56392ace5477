"""What of the Helm chart can be judged without helm; the rest is in tests/cluster/test_chart.py."""

import json
from copy import deepcopy
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from claims.admission import trust
from claims.dialects import parse, registry
from gpuplane.management.commands.recognised_names import page
from gpuplane.settings import variables
from kube import crds, keys

CHART = Path(__file__).resolve().parents[3] / "docker" / "helm" / "gpuplane"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
RECOGNISED = yaml.safe_load((CHART / "files" / "recognised.yaml").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def over(values, changes):
    """Values as helm merges them: maps into maps, everything else replaced."""
    merged = deepcopy(values)
    for name, value in changes.items():
        merged[name] = (
            over(merged[name], value) if isinstance(value, dict) and isinstance(merged.get(name), dict) else value
        )
    return merged


def leaves(values, prefix=""):
    """Dotted names of all values; an empty map is one value."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_schema_is_one():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted((CHART / "ci").glob("*.yaml")), ids=lambda path: path.stem)
def test_values_of_the_examples_are_valid(path):
    errors = [error.message for error in VALIDATOR.iter_errors(over(VALUES, yaml.safe_load(path.read_text())))]
    assert errors == []


def test_database_and_redis_are_all_that_is_missing_by_default():
    assert {error.json_path for error in VALIDATOR.iter_errors(VALUES)} == {"$.database", "$.redis"}


def test_every_map_of_ours_refuses_unknown_names():
    free = {"global", "settings"}

    def maps(schema, path):
        if "properties" in schema:
            assert schema.get("additionalProperties") is False, path
        for name, inner in schema.get("properties", {}).items():
            if name not in free:
                maps(inner, f"{path}.{name}")

    maps(SCHEMA, "$")
    for name, definition in SCHEMA["definitions"].items():
        if name not in {"urlGiven", "secretGiven"}:
            maps(definition, name)


def test_settings_that_the_chart_sets_itself_exist():
    refused = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"]
    known = {variable.name for variable in variables.VARIABLES}
    assert set(refused) <= known
    assert set(VALUES["settings"]) <= known - set(refused)


def test_readme_names_every_value():
    text = (CHART / "README.md").read_text()
    assert [path for path in leaves(VALUES) if f"`{path}`" not in text] == []


def test_definitions_of_the_chart_are_those_that_gpuplane_applies():
    shipped = {yaml.safe_load(path.read_text())["metadata"]["name"] for path in (CHART / "crds").iterdir()}
    assert {definition["metadata"]["name"] for definition in crds.manifests()} == shipped
    assert shipped == {
        "devices.scheduling.koordinator.sh",
        "gpuclaims.gpu.scheduling",
        "gpugangs.gpu.scheduling",
        "gpunodestatuses.gpu.scheduling",
        "gpuqueues.gpu.scheduling",
    }


def test_asking_names_are_those_of_the_dialects():
    assert set(RECOGNISED["askingAnnotations"]) == registry.REQUEST_ANNOTATIONS
    starts = set(RECOGNISED["resourceStarts"])
    assert starts == {keys.MIG_RESOURCES}
    assert set(registry.REQUEST_RESOURCES) == set(RECOGNISED["resources"]) | starts
    assert all(parse.is_request_resource(f"{start}1g.10gb") for start in starts)
    assert RECOGNISED["counted"] == keys.PODS_RESOURCE


def test_names_of_the_chart_are_those_of_the_registry():
    assert (CHART / "files" / "recognised.yaml").read_text() == page()
    assert set(RECOGNISED["ignoredResources"]) < set(RECOGNISED["resources"])


def test_exact_results_are_those_that_are_guarded():
    exact, guarded = set(RECOGNISED["results"]["exact"]), set(trust.RESULTS)
    assert exact <= guarded
    assert all(is_result(name) for name in guarded)


def is_result(key):
    """As the CEL of templates/_recognise.tpl decides it, by the same file."""
    results = RECOGNISED["results"]
    framed = results["framed"]
    return (
        key in results["exact"]
        or key.startswith(tuple(results["starts"]))
        or (key.startswith(framed["start"]) and key.endswith(tuple(framed["ends"])))
    )


PIECES = sorted(
    {
        "hami.io/",
        "vgpu-",
        "bind-",
        "-devices-allocated",
        "-devices-to-allocate",
        "runai-gpu-group",
        "/",
        "gpu",
        "x",
        ".",
    }
    | set(trust.RESULTS)
)


@given(st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
def test_results_are_recognised_as_the_webhook_does(key):
    assert is_result(key) == (trust.result_dialect(key) is not None)


def test_the_agent_sees_the_nodes_processes_and_devices():
    """Only the agent does, and it may change nothing there; what helm makes of the template is looked at with a
    cluster.
    """
    templates = {path.name: path.read_text() for path in (CHART / "templates").glob("*.yaml")}
    assert [name for name, text in templates.items() if "hostPID" in text] == ["agent.yaml"]
    lines = [line.strip() for line in templates["agent.yaml"].splitlines()]
    spec = lines[lines.index("template:") : lines.index("containers:")]
    assert "hostPID: true" in spec
    assert "- {name: sys, mountPath: /host/sys, readOnly: true}" in lines
    assert lines[lines.index("- name: sys") + 1] == "hostPath: {path: /sys, type: Directory}"
    mounts = [line for line in lines if line.startswith("- {name:") and "mountPath" in line]
    assert [line for line in mounts if "readOnly: true" not in line] == ["- {name: tmp, mountPath: /tmp}"]
