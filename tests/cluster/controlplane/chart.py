"""What the Helm chart renders, as Python objects: the tests apply exactly this, not something that resembles it."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.controlplane.program import ROOT
from tests.cluster.controlplane.tools import program

CHART = ROOT / "docker" / "helm" / "gpuplane"
EXAMPLES = sorted((CHART / "ci").glob("*-values.yaml"))
NAMESPACE = "gpuplane-system"
RESERVATIONS = "gpuplane-reservation"
"""The namespace of reservation pods."""
RELEASE = "gpuplane"
Json = dict[str, Any]
# Several pods share neither a SQLite file nor a socket, so the chart wants both; the processes of the tests are given
# their own.
REQUIRED = {"database": {"url": "postgres://user:password@database/gpuplane"}, "redis": {"url": "redis://redis:6379/0"}}


class ChartRefused(Exception):
    """helm does not render the chart with these values; the text is helm's."""


def helm(*words: str, given: str | None = None) -> str:
    """What helm prints. Raises ChartRefused."""
    done = subprocess.run(
        [program("helm"), *words], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise ChartRefused(done.stderr + done.stdout)
    return done.stdout


def example(path: Path) -> Json:
    """The values of one of EXAMPLES."""
    found: Json = yaml.safe_load(path.read_text())
    return found


class _StrictLoader(yaml.SafeLoader):
    """Takes no map in which a key stands twice, as the API server's clients do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The map. Raises ConstructorError."""
        found = super().construct_mapping(node, deep=deep)
        if len(found) != len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return found


def render(values: Mapping[str, Any] | None = None, *, chart: Path = CHART) -> list[Json]:
    """Every object of the chart with these values over its own, and its CRDs. Raises ChartRefused.

    Raises ConstructorError where a key stands twice.
    """
    given = json.dumps({**REQUIRED, **(values or {})})
    text = helm(
        "template",
        RELEASE,
        str(chart),
        "--namespace",
        NAMESPACE,
        "--kube-version",
        "1.36.3",
        "--include-crds",
        "--values",
        "-",
        given=given,
    )
    return [document for document in yaml.load_all(text, _StrictLoader) if document]


def of_kinds(objects: Iterable[Json], *kinds: str) -> list[Json]:
    """Those of these kinds, in the order rendered."""
    return [one for one in objects if one["kind"] in kinds]


def cluster_objects(objects: Iterable[Json]) -> list[Json]:
    """What a control plane needs that runs as processes beside the cluster: rights, definitions, webhooks, flow schema;
    no workloads.
    """
    return of_kinds(
        objects,
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "CustomResourceDefinition",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "FlowSchema",
    )


def scheduler_configuration(objects: Iterable[Json]) -> str:
    """The KubeSchedulerConfiguration file of the rendered ConfigMap."""
    for one in of_kinds(objects, "ConfigMap"):
        if "scheduler.yaml" in one.get("data", {}):
            return str(one["data"]["scheduler.yaml"])
    raise ChartRefused("no ConfigMap with scheduler.yaml was rendered")


def scheduler_gates(objects: Iterable[Json]) -> list[str]:
    """The feature gates with which the rendered pods start kube-scheduler, as arguments."""
    return [
        word
        for one in of_kinds(objects, "Deployment")
        for container in one["spec"]["template"]["spec"]["containers"]
        if container["name"] == "kube-scheduler"
        for word in container["command"]
        if word.startswith("--feature-gates=")
    ]
