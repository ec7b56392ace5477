"""Our own kinds in the cluster: installing their definitions, and access to GpuClaims and GpuGangs.

Called at start (definitions), by the claims room (spec goes through to the API server, status is ours) and by the
watch workers. Kept true: a definition that exists is left as it is; spec and status are never written by the
same request; a write that rests on what was read carries its resourceVersion.
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
from kube.listing import Listing, Named
from kube.resources import CRDS, GPU_CLAIMS, Resource
from kube.watch import Changed, ListWatch, Relisted, Stop

MANIFESTS: Final = Path(__file__).resolve().parents[1] / "docker" / "helm" / "gpuplane" / "crds"


class CustomMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """metadata of a custom object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class CustomObject(msgspec.Struct, rename="camel", omit_defaults=True):
    """A GpuClaim or GpuGang. `spec` and `status` stay raw: the claims room reads them, this one carries them."""

    metadata: CustomMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _DefinitionStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Definition(Named):
    status: _DefinitionStatus | None = None

    @property
    def established(self) -> bool:
        conditions = (self.status.conditions if self.status else None) or []
        return any(c.type == "Established" and c.status == "True" for c in conditions)


def manifests(folder: Path = MANIFESTS) -> list[dict[str, Any]]:
    """The definitions that we ship, sorted by file name. Raises OSError, yaml.YAMLError."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]


def apply_missing(
    cluster: Cluster, *, definitions: Iterable[Mapping[str, Any]] | None = None, timeout: float | None = None
) -> list[str]:
    """Create the definitions that do not exist yet; the names of those created. Safe to run in several processes at once."""
    created = []
    for definition in manifests() if definitions is None else definitions:
        name = str(definition["metadata"]["name"])
        try:
            cluster.get(CRDS.path(name=name), _Definition, timeout=timeout)
        except NotFoundInCluster:
            try:
                cluster.create(CRDS.path(), definition, _Definition, idempotent=True, timeout=timeout)
            except AlreadyExists:  # another process was faster, or our first answer was lost
                continue
            created.append(name)
    return created


def wait_established(cluster: Cluster, *, names: Iterable[str], seconds: float, stop: Stop | None = None) -> set[str]:
    """Watch until the API server serves these definitions; those that it does not after `seconds` (none: all is well).

    Raises the tree of `kube.errors` for anything permanent, and when the API server is out of reach at the end.
    """
    missing = set(names)
    if not missing:
        return missing
    with closing(ListWatch(cluster, CRDS, _Definition).turn(seconds=seconds, stop=stop)) as turn:
        for event in turn:
            if isinstance(event, Relisted):
                missing -= {name for (_, name), item in event.objects.items() if item.established}
            elif isinstance(event, Changed) and event.type != "DELETED" and event.object.established:
                missing.discard(event.key[1])
            if not missing:
                break
    return missing


# objects of our kinds


def get(
    cluster: Cluster, *, namespace: str, name: str, resource: Resource = GPU_CLAIMS, timeout: float | None = None
) -> CustomObject:
    """Raises `NotFoundInCluster`; its `details.kind` is empty where the definition itself is missing."""
    return cluster.get(resource.path(namespace=namespace, name=name), CustomObject, timeout=timeout)


def list_all(
    cluster: Cluster, *, namespace: str | None = None, resource: Resource = GPU_CLAIMS, timeout: float | None = None
) -> Listing[CustomObject]:
    """Those of a namespace, or of all, at one moment."""
    return cluster.list(resource.path(namespace=namespace), CustomObject, timeout=timeout)


def create(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resource: Resource = GPU_CLAIMS,
    timeout: float | None = None,
) -> CustomObject:
    """As stored, defaults filled in. Raises `AlreadyExists`, `Invalid` (`details.causes` name the fields), `OutcomeUnknown`."""
    meta = {"namespace": namespace, "name": name, "labels": labels or {}, "annotations": annotations or {}}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": spec}
    return cluster.create(resource.path(namespace=namespace), body, CustomObject, timeout=timeout)


def replace(
    cluster: Cluster, *, manifest: Mapping[str, Any], resource: Resource = GPU_CLAIMS, timeout: float | None = None
) -> CustomObject:
    """PUT of a whole manifest, status aside. Its metadata must carry the resourceVersion that was read.

    Raises `ConflictInCluster`, `Invalid`, `NotFoundInCluster`, `OutcomeUnknown`. What the manifest leaves out is
    taken away, labels and finalizers too: to change only the spec use `spec_replace`.
    """
    meta = manifest["metadata"]
    body = {**manifest, "apiVersion": resource.api_version, "kind": resource.kind}
    return cluster.replace(
        resource.path(namespace=meta["namespace"], name=meta["name"]), body, CustomObject, timeout=timeout
    )


def spec_replace(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    resource_version: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resource: Resource = GPU_CLAIMS,
    timeout: float | None = None,
) -> CustomObject:
    """Put a new spec in place of the old one, if the object is still at `resource_version`; what is None stays.

    A JSON patch that also sets metadata.resourceVersion: the API server then compares it as for a PUT.
    Raises `ConflictInCluster`, `Invalid`, `NotFoundInCluster`, `OutcomeUnknown`.
    """
    steps: list[dict[str, Any]] = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        {"op": "replace", "path": "/spec", "value": spec},
    ]
    told = (("labels", labels), ("annotations", annotations))
    steps += [{"op": "add", "path": f"/metadata/{part}", "value": value} for part, value in told if value is not None]
    path = resource.path(namespace=namespace, name=name)
    return cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH, idempotent=False, timeout=timeout)


def status_replace(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    status: Mapping[str, Any],
    resource_version: str | None = None,
    resource: Resource = GPU_CLAIMS,
    timeout: float | None = None,
) -> CustomObject:
    """Put a new status in place of the old one. Only gpuplane writes it, so `resource_version` may be left out; then the last write wins."""
    steps: list[dict[str, Any]] = [{"op": "add", "path": "/status", "value": status}]
    if resource_version is not None:
        steps.insert(0, {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version})
    path = resource.path(namespace=namespace, name=name, subresource="status")
    alone = resource_version is None
    return cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH, idempotent=alone, timeout=timeout)


def delete(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    resource_version: str | None = None,
    resource: Resource = GPU_CLAIMS,
    timeout: float | None = None,
) -> bool:
    """True when deleted now, False when it was gone already. Raises `ConflictInCluster` when a precondition fails."""
    path = resource.path(namespace=namespace, name=name)
    try:
        cluster.delete(path, uid=uid, resource_version=resource_version, timeout=timeout)
    except NotFoundInCluster:
        return False
    return True
