"""What every endpoint shares in the OpenAPI document: problems, idempotency, media types.

`tests/functional/test_schemathesis.py` compares the document with the responses.
"""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter
from typing_extensions import override

from gpuplane.problems import MEDIA_TYPE
from gpuplane.rest.idempotency import HEADER, KEY, METHODS

ALWAYS = {
    "400": "a value breaks a rule: `field` and `rule` say which",
    "401": "no credentials, or unknown ones",
    "403": "not allowed to this account",
    "404": "no such object, or not one that this account sees",
    "503": "a part that this needs is down; try again",
}
ON_WRITES = {
    "409": "the object changed meanwhile, or is in a state that forbids this",
    "413": "the body is too large",
    "415": "not a media type that is understood",
    "422": "the Idempotency-Key was used for another request",
    "429": "too many answers are kept for this account's keys; nothing was done",
}
PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem document.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "a sentence for a person"},
        "field": {"type": "string", "description": "path of the value that broke a rule"},
        "rule": {"type": "string", "description": "short stable name of the rule"},
    },
}


class Described(AutoSchema):
    """Adds problems to every answer (a view may name its own: `problems`, status → when) and `Idempotency-Key` to every
    write.
    """

    @override
    def get_override_parameters(self) -> list[Any]:
        if self.method not in METHODS:
            return []
        return [
            OpenApiParameter(
                HEADER,
                {"type": "string", "pattern": f"^{KEY.pattern}$", "maxLength": 255},
                OpenApiParameter.HEADER,
                description="the same key and request again: the first answer again, but for 401, 403, 429 and 5xx",
            )
        ]

    @override
    def map_parsers(self) -> list[Any]:
        """YAML by its registered name; merge patches for PATCH alone."""
        media_types = ["application/json", "application/yaml"]
        return ["application/merge-patch+json", *media_types] if self.method == "PATCH" else media_types

    @override
    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        component = ResolvedComponent(  # type: ignore[no-untyped-call]  # drf-spectacular's
            name="Problem", type=ResolvedComponent.SCHEMA, object="gpuplane.problems.Problem", schema=PROBLEM
        )
        self.registry.register_on_missing(component)
        content = {MEDIA_TYPE: {"schema": component.ref}}
        problems = ALWAYS | (ON_WRITES if self.method in METHODS else {}) | getattr(self.view, "problems", {})
        for status, description in problems.items():
            bodies.setdefault(status, {"content": content, "description": description})
        return bodies


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # drf-spectacular's
    """How `gpuplane.rest.authentication.BearerAuthentication` is described; found by drf-spectacular as a subclass."""

    target_class = "gpuplane.rest.authentication.BearerAuthentication"
    name = "token"

    @override
    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
