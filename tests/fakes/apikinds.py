"""The kinds of objects that the stand-in API server keeps, and the refusals it answers with.

The store, the rules and the HTTP of `tests.fakes` all speak in these; custom kinds are made by the store, one a served
version of a CRD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

Object = dict[str, Any]
Key = tuple[str, str]


def copied(value: T) -> T:
    """A copy of a JSON value; `copy.deepcopy` takes twenty times as long."""
    found: T = orjson.loads(orjson.dumps(value))
    return found


class ApiFault(Exception):
    """An answer other than 2xx, with the reason and details of its Status body."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Object | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details, self.retry_after = (
            code,
            reason,
            message,
            details,
            retry_after,
        )

    def status(self) -> Object:
        """The `Status` object that kube-apiserver would send."""
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code, "details": details,
        }  # fmt: skip


def not_found(kind: Kind, name: str) -> ApiFault:
    return ApiFault(
        404,
        "NotFound",
        f'{kind.qualified} "{name}" not found',
        details={"name": name, "kind": kind.plural, "group": kind.group},
    )


def conflict(kind: Kind, name: str, why: str) -> ApiFault:
    return ApiFault(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}',
        details={"name": name, "kind": kind.plural},
    )


def invalid(kind: Kind, name: str, faults: list[tuple[str, str]]) -> ApiFault:
    causes = [{"reason": "FieldValueInvalid", "message": text, "field": where} for where, text in faults]
    told = ", ".join(f"{where}: {text}" for where, text in faults)
    return ApiFault(
        422,
        "Invalid",
        f'{kind.kind} "{name}" is invalid: {told}',
        details={"name": name, "kind": kind.kind, "causes": causes},
    )


@dataclass(frozen=True)
class Kind:
    """One collection of objects. `custom` ones exist only while their CRD does."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    unconditional: bool = True
    create_on_update: bool = False
    custom: bool = False

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
PODS = Kind("", "v1", "pods", "Pod", status=True)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False, status=True)
EVENTS = Kind("", "v1", "events", "Event")
VOLUME_CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STORAGE_CLASSES = Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
RESOURCE_CLAIMS = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease", unconditional=False, create_on_update=True)
MUTATING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
CRDS = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    status=True,
    unconditional=False,
)
