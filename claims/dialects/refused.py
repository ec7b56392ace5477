"""Refusals while parsing: an exception inside this package, a `Refusal` outside it."""

from __future__ import annotations

from claims.dialects.request import Refusal


class Refused(Exception):
    """The pod broke a rule of its dialect. `claims.dialects.parse` catches it."""

    def __init__(self, rule: str, reason: str, *, field: str = "") -> None:
        super().__init__(reason)
        self.refusal = Refusal(rule=rule, reason=reason, field=field)


def annotation_field(name: str) -> str:
    """The field of a pod's annotation, for a refusal."""
    return f"metadata.annotations[{name}]"


def refused_annotation(rule: str, name: str, problem: str) -> Refused:
    """The refusal of a pod's annotation: `annotation <name> <problem>`."""
    return Refused(rule, f"annotation {name} {problem}", field=annotation_field(name))
