"""Webhook configurations and namespace labels, read by the check of a takeover (DEV-11)."""

from __future__ import annotations

import msgspec

from kube.client import Cluster
from kube.objects import Named
from kube.resources import MUTATING_WEBHOOKS, NAMESPACES, VALIDATING_WEBHOOKS


class _Requirement(msgspec.Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _Selector(msgspec.Struct, rename="camel"):
    match_expressions: list[_Requirement] | None = None


class Webhook(msgspec.Struct, rename="camel"):
    """One webhook of a configuration."""

    name: str = ""
    namespace_selector: _Selector | None = None

    @property
    def excluded_namespaces(self) -> frozenset[str]:
        """Namespaces that it excludes by name."""
        found = self.namespace_selector.match_expressions if self.namespace_selector else None
        return frozenset(
            name
            for one in found or ()
            if one.key == "kubernetes.io/metadata.name" and one.operator == "NotIn"
            for name in one.values or ()
        )


class Configuration(Named):
    """A mutating or validating webhook configuration."""

    webhooks: list[Webhook] | None = None


def configurations(cluster: Cluster) -> list[Configuration]:
    """All webhook configurations. Raises KubeError."""
    return [
        found
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        for found in cluster.list(resource.path(), Configuration).items
    ]


def namespace_labels(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Namespace → its labels. Raises KubeError."""
    return {one.metadata.name: one.labels for one in cluster.list(NAMESPACES.path(), Named).items}
