"""Kinds of objects that the simulated API server keeps, and its refusals.

Used by all of `simulator.cluster`. A kind of a CustomResourceDefinition is made by the store when it is created.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kube import resources
from kube.resources import Resource

Object = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for objects of the whole cluster."""


class Kind(Resource, frozen=True, kw_only=True):
    """A collection. `status`: written by a subresource; `lasting`: survives a restart, others are written again."""

    status: bool = False
    custom: bool = False
    lasting: bool = True

    def key(self, namespace: str, name: str) -> Key:
        """The key of an object."""
        return (namespace if self.namespaced else "", name)


def _kept(resource: Resource, *, status: bool = False, lasting: bool = True) -> Kind:
    return Kind(**msgspec.structs.asdict(resource), status=status, lasting=lasting)


NAMESPACES: Final = _kept(resources.NAMESPACES)
PODS: Final = _kept(resources.PODS, status=True)
NODES: Final = _kept(resources.NODES, status=True)
EVENTS: Final = _kept(resources.EVENTS, lasting=False)
LEASES: Final = _kept(resources.LEASES)
CRDS: Final = _kept(resources.CRDS, status=True)
NODE_POOLS: Final = _kept(resources.NODE_POOLS, status=True)
NODE_CLAIMS: Final = _kept(resources.NODE_CLAIMS, status=True)
_OTHERS: Final = (
    resources.VOLUME_CLAIMS,
    resources.ACCOUNTS,
    resources.MUTATING_WEBHOOKS,
    resources.VALIDATING_WEBHOOKS,
    resources.STORAGE_CLASSES,
    resources.RESOURCE_CLAIMS,
    resources.ROLES,
    resources.ROLE_BINDINGS,
)
BUILT_IN: Final = (
    NAMESPACES,
    PODS,
    NODES,
    EVENTS,
    LEASES,
    CRDS,
    NODE_POOLS,
    NODE_CLAIMS,
    *(_kept(resource) for resource in _OTHERS),
)


class Refusal(Exception):
    """An answer other than 2xx."""

    def __init__(self, code: int, reason: str, message: str, *, kind: Kind | None = None, name: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self._details = {"name": name, "kind": kind.plural, "group": kind.group} if kind is not None else {}

    def status(self) -> Object:
        """The `Status` object of the answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self._details,
            "code": self.code,
        }


def not_found(kind: Kind, name: str) -> Refusal:
    """404."""
    return Refusal(404, "NotFound", f'{kind.qualified} "{name}" not found', kind=kind, name=name)


def conflict(kind: Kind, name: str, why: str) -> Refusal:
    """409 for a write whose precondition does not hold."""
    text = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return Refusal(409, "Conflict", text, kind=kind, name=name)


def invalid(kind: Kind, name: str, why: str) -> Refusal:
    """422."""
    return Refusal(422, "Invalid", f'{kind.kind} "{name}" is invalid: {why}', kind=kind, name=name)


def too_old(since: int) -> Refusal:
    """410 for a resourceVersion whose changes are forgotten."""
    return Refusal(410, "Expired", f"too old resource version: {since}")
