"""REST of objects in manifest shape: the same YAML serves `kubectl` and REST (CLAIM-1).

The schemas are for the OpenAPI document. The readers of manifests in `claims` check bodies; a schemathesis run compares
both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from claims.kinds import Kind, R
from claims.selectors import manifest_get, manifest_list, manifest_of
from claims.services import manifest_create, manifest_delete, manifest_patch, manifest_replace
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import LABEL_PATTERN, SUBDOMAIN_PATTERN, AnyObjectField, TextsField, filters
from kube.keys import API_VERSION
from storage.clock import database_now

Schema = type[serializers.Serializer[Any]]


class WriteMetadataSchema(serializers.Serializer[Any]):
    """metadata as written."""

    name = serializers.RegexField(SUBDOMAIN_PATTERN, max_length=253)
    namespace = serializers.RegexField(LABEL_PATTERN, max_length=63, required=False)
    labels = TextsField(required=False)
    annotations = TextsField(required=False)
    resourceVersion = serializers.CharField(required=False, max_length=64)  # noqa: N815 - the manifest's name


class MetadataSchema(serializers.Serializer[Any]):
    """metadata."""

    name = serializers.CharField()
    namespace = serializers.CharField(required=False, help_text="not of cluster-scoped objects")
    uid = serializers.UUIDField()
    generation = serializers.IntegerField()
    resourceVersion = serializers.CharField(allow_blank=True)  # noqa: N815 - the manifest's name
    creationTimestamp = serializers.DateTimeField()  # noqa: N815 - the manifest's name
    labels = TextsField()
    annotations = TextsField()


class ManifestPatchSchema(serializers.Serializer[Any]):
    """A merge patch: any part of the manifest."""

    metadata = AnyObjectField(required=False)
    spec = AnyObjectField(required=False)


def write_schema(kind: Kind[Any], spec: serializers.Field[Any, Any, Any, Any]) -> Schema:
    """The schema of a manifest as written."""
    fields = {
        "__doc__": f"A {kind.name} manifest as written.",
        "apiVersion": serializers.ChoiceField(choices=[API_VERSION], required=False),
        "kind": serializers.ChoiceField(choices=[kind.name], required=False),
        "metadata": WriteMetadataSchema(),
        "spec": spec,
    }
    return type(f"{kind.name.removeprefix('Gpu')}WriteSchema", (serializers.Serializer,), fields)


def read_schema(kind: Kind[Any], status: serializers.Field[Any, Any, Any, Any]) -> Schema:
    """The schema of a manifest as answered."""
    fields = {
        "__doc__": f"A {kind.name} manifest.",
        "apiVersion": serializers.ChoiceField(choices=[API_VERSION]),
        "kind": serializers.ChoiceField(choices=[kind.name]),
        "metadata": MetadataSchema(),
        "spec": AnyObjectField(),
        "status": status,
    }
    return type(f"{kind.name.removeprefix('Gpu')}Schema", (serializers.Serializer,), fields)


class ManifestViewSet(GenericViewSet[R], ABC):
    """Objects of a kind that the caller sees."""

    kind: ClassVar[Kind[Any]]
    filters: ClassVar[Schema]
    ordering = ("namespace", "name")

    @abstractmethod
    def statuses(self, rows: Sequence[R]) -> Mapping[int, Mapping[str, Any]]:
        """`status` by the row's id."""

    def list(self, request: Request) -> Response:
        """Objects that match, by namespace and name."""
        rows = manifest_list(self.kind, actor=request_actor(request)).filter(**filters(self.filters, request))
        page = self.paginate_queryset(rows) or []
        statuses = self.statuses(page)
        return self.get_paginated_response([manifest_of(row, statuses[row.pk]) for row in page])

    def create(self, request: Request) -> Response:
        """Create from a manifest."""
        row = manifest_create(self.kind, manifest=request.data, actor=request_actor(request), now=database_now())
        return Response(self._manifest(row), status=201)

    def retrieve(self, request: Request, name: str, namespace: str = "") -> Response:
        """One object with its status."""
        actor = request_actor(request)
        return Response(self._manifest(manifest_get(self.kind, namespace=namespace, name=name, actor=actor)))

    def update(self, request: Request, name: str, namespace: str = "") -> Response:
        """Replace metadata and spec."""
        row = manifest_replace(
            self.kind,
            namespace=namespace,
            name=name,
            manifest=request.data,
            actor=request_actor(request),
            now=database_now(),
        )
        return Response(self._manifest(row))

    def partial_update(self, request: Request, name: str, namespace: str = "") -> Response:
        """Merge patch."""
        row = manifest_patch(
            self.kind,
            namespace=namespace,
            name=name,
            patch=request.data,
            actor=request_actor(request),
            now=database_now(),
        )
        return Response(self._manifest(row))

    def destroy(self, request: Request, name: str, namespace: str = "") -> Response:
        """Delete."""
        actor = request_actor(request)
        manifest_delete(self.kind, namespace=namespace, name=name, actor=actor, now=database_now())
        return Response(status=204)

    def _manifest(self, row: R) -> dict[str, Any]:
        return manifest_of(row, self.statuses([row])[row.pk])


def described(
    *,
    many: str,
    one: str,
    address: Sequence[OpenApiParameter],
    query: Schema,
    read: Schema,
    write: Schema,
    created: str = "",
    deleted: str = "",
) -> Callable[[type[ManifestViewSet[R]]], type[ManifestViewSet[R]]]:
    """The OpenAPI document's words on a kind. `created`, `deleted`: what is said of these operations."""
    bare, parameters = one.removeprefix("a "), list(address)
    return extend_schema_view(
        list=extend_schema(summary=many, parameters=[query], responses=read(many=True)),
        create=extend_schema(
            summary=f"Create {one}", description=created or None, request=write, responses={201: read}
        ),
        retrieve=extend_schema(summary=f"One {bare}", parameters=parameters, responses=read),
        update=extend_schema(
            summary=f"Replace {one}",
            description=f"With `metadata.resourceVersion` only if the {bare} is still at that version, else 409.",
            parameters=parameters,
            request=write,
            responses=read,
        ),
        partial_update=extend_schema(
            summary=f"Change {one}",
            description="A JSON merge patch (RFC 7386) of the manifest; null removes.",
            parameters=parameters,
            request=ManifestPatchSchema,
            responses=read,
        ),
        destroy=extend_schema(
            summary=f"Delete {one}", description=deleted or None, parameters=parameters, responses={204: None}
        ),
    )
