"""The kinds of objects that the stand-in API server keeps, and the refusals it answers with.

The store, the rules and the HTTP of `tests.fakes` all speak in these; custom kinds are made by the store, one a served
version of a CRD.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import orjson

from kube import resources
from kube.resources import Resource

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


class Kind(Resource, frozen=True, kw_only=True):
    """One collection of objects. `custom` ones exist only while their CRD does."""

    status: bool = False
    unconditional: bool = True
    create_on_update: bool = False
    custom: bool = False


def _served(
    resource: Resource, *, status: bool = False, unconditional: bool = True, create_on_update: bool = False
) -> Kind:
    return Kind(
        **msgspec.structs.asdict(resource),
        status=status,
        unconditional=unconditional,
        create_on_update=create_on_update,
    )


NAMESPACES = _served(resources.NAMESPACES)
PODS = _served(resources.PODS, status=True)
NODES = _served(resources.NODES, status=True)
EVENTS = _served(resources.EVENTS)
VOLUME_CLAIMS = _served(resources.VOLUME_CLAIMS)
STORAGE_CLASSES = _served(resources.STORAGE_CLASSES)
RESOURCE_CLAIMS = _served(resources.RESOURCE_CLAIMS)
ACCOUNTS = _served(resources.ACCOUNTS)
ROLES = _served(resources.ROLES)
ROLE_BINDINGS = _served(resources.ROLE_BINDINGS)
LEASES = _served(resources.LEASES, unconditional=False, create_on_update=True)
MUTATING = _served(resources.MUTATING_WEBHOOKS)
VALIDATING = _served(resources.VALIDATING_WEBHOOKS)
CRDS = _served(resources.CRDS, status=True, unconditional=False)
