"""CRD schemas for the stand-in API server: defaults, pruning, validation.

jsonschema knows what a structural schema says except `x-kubernetes-*`: int-or-string is rewritten, and of CEL only
the shape that our manifests use, `!(has(self.a) && has(self.b))`, is understood; another rule is an error of the test.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import orjson

from tests.fakes.apikinds import copied

_NOT_BOTH = re.compile(r"!\(has\(self\.(\w+)\) && has\(self\.(\w+)\)\)")


def apply_defaults(schema: dict[str, Any], value: Any) -> Any:
    """`value` with the schema's defaults filled in and fields the schema does not know dropped, as the server stores
    it.
    """
    new = _filled(schema, value)
    if isinstance(value, dict):  # the top level keeps what every object has
        new = {
            **{k: copied(value[k]) for k in ("apiVersion", "kind", "metadata") if k in value},
            **{k: v for k, v in new.items() if k != "metadata"},
        }
    return new


def _filled(schema: dict[str, Any], value: Any) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_filled(schema["items"], item) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return copied(value)
    if isinstance(extra := schema.get("additionalProperties"), dict):
        return {key: _filled(extra, item) for key, item in value.items()}
    known = schema.get("properties", {})
    new = {key: _filled(known[key], item) for key, item in value.items() if key in known}
    for key, part in known.items():
        if key not in new and "default" in part:
            new[key] = _filled(part, part["default"])
    return new


def schema_faults(schema: dict[str, Any], value: dict[str, Any]) -> list[tuple[str, str]]:
    """Path and message of everything the schema forbids in `value`."""
    found = sorted(_validator(orjson.dumps(schema)).iter_errors(value), key=lambda e: list(map(str, e.absolute_path)))
    faults = [(".".join(map(str, error.absolute_path)), error.message) for error in found]
    return faults or list(_rule_faults(schema, value, ""))


@lru_cache(maxsize=16)
def _validator(schema: bytes) -> Any:
    plain = {**_plain(orjson.loads(schema))}
    plain["properties"] = {k: v for k, v in plain.get("properties", {}).items() if k != "metadata"}
    return jsonschema.Draft7Validator(plain)


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _plain(part) for key, part in schema.items() if not key.startswith("x-kubernetes-") and key != "nullable"
    }
    if schema.get("nullable"):
        plain["type"] = [plain["type"], "null"]
    if schema.get("x-kubernetes-int-or-string"):
        plain.pop("type", None)
        plain["anyOf"] = [
            {"type": "integer"},
            {"type": "string", **({"pattern": schema["pattern"]} if "pattern" in schema else {})},
        ]
        plain.pop("pattern", None)
    return plain


def _rule_faults(schema: dict[str, Any], value: Any, where: str) -> list[tuple[str, str]]:
    faults = []
    if isinstance(value, dict):
        for rule in schema.get("x-kubernetes-validations", []):
            match = _NOT_BOTH.fullmatch(rule["rule"])
            if not match:
                raise ValueError(f"a rule that this stand-in cannot judge: {rule['rule']}")
            if match[1] in value and match[2] in value:
                faults.append((where, rule["message"]))
        for key, part in schema.get("properties", {}).items():
            if key in value:
                faults += _rule_faults(part, value[key], f"{where}.{key}".lstrip("."))
    return faults
