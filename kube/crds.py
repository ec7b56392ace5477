"""Our own kinds in the cluster: installing their definitions, reading and writing objects of them.

Invariants: an existing definition is left as it is; spec and status are never written by the same request; the spec is
written under the resourceVersion that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from kube.client import JSON_PATCH, Cluster
from kube.errors import AlreadyExists, NotFoundInCluster
from kube.objects import Condition, Named, ObjectMeta
from kube.resources import CRDS, Resource
from kube.watch import Changed, ListWatch, Relisted, Stop

MANIFESTS: Final = Path(__file__).resolve().parents[1] / "docker" / "helm" / "gpuplane" / "crds"


class CustomMeta(ObjectMeta):
    """metadata of a custom object."""

    generation: int = 0


class CustomObject(Named, kw_only=True):
    """A GpuClaim, GpuGang, GpuQueue, GpuNodeStatus or Device. `spec` and `status` are not parsed here."""

    metadata: CustomMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] | None = None


class _DefinitionStatus(msgspec.Struct):
    conditions: list[Condition] | None = None


class _Definition(Named):
    status: _DefinitionStatus | None = None

    @property
    def established(self) -> bool:
        conditions = (self.status.conditions if self.status else None) or []
        return any(c.type == "Established" and c.status == "True" for c in conditions)


def manifests() -> list[dict[str, Any]]:
    """The shipped definitions, sorted by file name. Raises OSError, yaml.YAMLError."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(MANIFESTS.glob("*.yaml"))]


def apply_missing(cluster: Cluster, *, definitions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Create the missing definitions; the names of those created. Several processes may run it at once."""
    created = []
    for definition in definitions:
        name = str(definition["metadata"]["name"])
        try:
            cluster.get(CRDS.path(name=name), _Definition)
        except NotFoundInCluster:
            try:
                cluster.create(CRDS.path(), definition, _Definition, idempotent=True)
            except AlreadyExists:  # another process was faster, or our first answer was lost
                continue
            created.append(name)
    return created


def wait_established(cluster: Cluster, *, names: Iterable[str], seconds: float, stop: Stop | None = None) -> set[str]:
    """Watch until the API server serves these definitions; those that are not served after `seconds`.

    Raises permanent errors of `kube.errors`, and temporary ones when the API server is unreachable at the end.
    """
    missing = set(names)
    if not missing:
        return missing
    with closing(ListWatch(cluster, CRDS, _Definition).events(seconds=seconds, stop=stop)) as events:
        for event in events:
            if isinstance(event, Relisted):
                missing -= {name for (_, name), item in event.objects.items() if item.established}
            elif isinstance(event, Changed) and event.type != "DELETED" and event.object.established:
                missing.discard(event.key[1])
            if not missing:
                break
    return missing


def get(
    cluster: Cluster, resource: Resource, *, namespace: str, name: str, timeout: float | None = None
) -> CustomObject:
    """The object. Raises `NotFoundInCluster`; its `details.kind` is empty where the definition itself is missing."""
    return cluster.get(resource.path(namespace=namespace or None, name=name), CustomObject, timeout=timeout)


def create(
    cluster: Cluster,
    resource: Resource,
    *,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    timeout: float | None = None,
) -> CustomObject:
    """Create an object; as stored, with defaults.

    Raises `AlreadyExists`, `Invalid` (`details.causes` name the fields), `OutcomeUnknown`.
    """
    place = {"namespace": namespace} if namespace else {}
    meta = {**place, "name": name, "labels": labels, "annotations": annotations}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": spec}
    return cluster.create(resource.path(namespace=namespace or None), body, CustomObject, timeout=timeout)


def spec_replace(
    cluster: Cluster,
    resource: Resource,
    *,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    resource_version: str,
    timeout: float | None = None,
) -> CustomObject:
    """Replace spec, labels and annotations; see `patch_at`."""
    path = resource.path(namespace=namespace or None, name=name)
    values = {"/spec": spec, "/metadata/labels": labels, "/metadata/annotations": annotations}
    return patch_at(cluster, path, resource_version, values, timeout=timeout)


def patch_at(
    cluster: Cluster, path: str, resource_version: str, values: Mapping[str, Any], *, timeout: float | None = None
) -> CustomObject:
    """Set the values at these JSON pointers, if the object is still at `resource_version`.

    The JSON patch also sets metadata.resourceVersion, which the API server then compares as for a PUT. Raises
    `ConflictInCluster`, `Invalid`, `NotFoundInCluster`, `OutcomeUnknown`.
    """
    steps = [{"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version}]
    steps += [{"op": "add", "path": pointer, "value": value} for pointer, value in values.items()]
    return cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH, idempotent=False, timeout=timeout)


def status_replace(
    cluster: Cluster, resource: Resource, *, namespace: str, name: str, status: Mapping[str, Any]
) -> CustomObject:
    """Replace the status. Only gpuplane writes it: the last write wins."""
    path = resource.path(namespace=namespace or None, name=name, subresource="status")
    steps = [{"op": "add", "path": "/status", "value": status}]
    return cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH)


def delete(
    cluster: Cluster, resource: Resource, *, namespace: str, name: str, uid: str, timeout: float | None = None
) -> bool:
    """Delete an object; False when it was gone already. Raises `ConflictInCluster` for another uid."""
    try:
        cluster.delete(resource.path(namespace=namespace or None, name=name), uid=uid, timeout=timeout)
    except NotFoundInCluster:
        return False
    return True
