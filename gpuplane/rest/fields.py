"""Fields and filters that several resources share.

Fields describe bodies in the OpenAPI document; REST framework itself checks filters by them, and small bodies.
"""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from access.errors import BadInput

LONGEST_FIELD: Final = 100
"""Characters of a field's name that an error repeats."""
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def _quantity(minimum: int) -> dict[str, Any]:
    return {"oneOf": [{"type": "string", "maxLength": 64}, {"type": "integer", "minimum": minimum}]}


@extend_schema_field(_quantity(0))
class QuantityField(serializers.Field[Any, Any, Any, Any]):
    """Bytes, or a quantity such as `80Gi`."""


@extend_schema_field(_quantity(1))
class AskedQuantityField(serializers.Field[Any, Any, Any, Any]):
    """The same, and more than 0. The service parses it."""

    def to_internal_value(self, data: Any) -> str | int:
        """The quantity as it was given. Raises ValidationError."""
        if isinstance(data, bool) or not isinstance(data, str | int):
            raise serializers.ValidationError("give bytes, or a quantity such as 10Gi", code="type")
        return data


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class TextsField(serializers.Field[Any, Any, Any, Any]):
    """Text by name: labels, annotations."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class AnyObjectField(serializers.Field[Any, Any, Any, Any]):
    """Any object."""


class NamespaceFilter(serializers.CharField):
    """Only of this namespace."""

    def __init__(self) -> None:
        super().__init__(required=False, max_length=63)


class NameFilter(serializers.CharField):
    """Only of the object of this name. `column`: where the name is kept, if not in a column of the filter's name."""

    def __init__(self, column: str | None = None) -> None:
        super().__init__(required=False, max_length=253, source=column)


def checked(schema: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """The values of a body or a query, by the schema. Raises ValidationError, which is a 400."""
    form = schema(data=data)
    form.is_valid(raise_exception=True)
    return dict(form.validated_data)


def body_of(schema: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    """The values of the body, by the schema. Raises ValidationError, and BadInput for what is no field of it."""
    body = checked(schema, request.data)
    known = schema().fields
    for name in request.data:
        if name not in known:
            shown = str(name)[:LONGEST_FIELD]
            advice = f"known: {', '.join(known)}"
            raise BadInput(f"{shown} is not a field of this body; {advice}", field=shown, rule="unknown-field")
    return body


def filters(schema: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    """The filters that the query sets, by the schema: column → value. Raises ValidationError."""
    return {name: value for name, value in checked(schema, request.query_params).items() if value not in (None, "")}


def address(kind: str) -> list[OpenApiParameter]:
    """Path parameters of an object in a namespace."""
    return [
        OpenApiParameter("namespace", str, OpenApiParameter.PATH, description=f"namespace of the {kind}"),
        OpenApiParameter("name", str, OpenApiParameter.PATH, description=f"name of the {kind}"),
    ]
