"""Decodes the text of a scenario, JSON or YAML.

Called by `allocations.scenario.parse` and `allocations.whatif.program`. YAML is built from PyYAML's events, because its
loaders crash the process on deeply nested text and expand aliases without bound. Invariants: only `BadInput` is raised;
depth and the expanded size are bounded; plain scalars have the types of YAML 1.2's core schema (`0000:09`, `no` and
dates are text); keys are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from access.errors import BadInput, TooLarge

JSON_BYTES_MOST: Final = 32 * 1024 * 1024
YAML_BYTES_MOST: Final = 8 * 1024 * 1024
DEPTH_MOST: Final = 48
VALUES_MOST: Final = 4_000_000
"""Values of a YAML text, aliases expanded."""

_INT: Final = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "-.inf", "-.Inf"), float("inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TAGS: Final = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_MERGE: Final = object()
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(text: str | bytes) -> Any:
    """The value of JSON or YAML. Raises BadInput."""
    decoded = _decoded(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    if not decoded.lstrip().startswith("{"):
        return _read_yaml(decoded)
    try:
        return msgspec.json.decode(decoded)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return _read_yaml(decoded)  # flow YAML begins like JSON
        except BadInput:
            raise BadInput(f"the scenario is neither JSON nor YAML: {error}", rule="syntax") from error


def read_json(raw: bytes) -> Any:
    """The value of JSON. Raises BadInput."""
    try:
        return msgspec.json.decode(_decoded(raw))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"the scenario is not JSON: {error}", rule="syntax") from error


def read_yaml(raw: bytes) -> Any:
    """The value of YAML. Raises BadInput."""
    return _read_yaml(_decoded(raw))


def _decoded(raw: bytes) -> str:
    if len(raw) > JSON_BYTES_MOST:
        raise TooLarge(f"the scenario has {len(raw)} bytes, at most {JSON_BYTES_MOST} are taken", rule="size")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"the scenario is not UTF-8: {error.reason} at byte {error.start}", rule="encoding") from error


def _read_yaml(text: str) -> Any:
    if len(text) > YAML_BYTES_MOST:
        raise TooLarge(f"a scenario in YAML may have {YAML_BYTES_MOST} bytes; send larger ones as JSON", rule="size")
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        place = f" (line {where.line + 1}, column {where.column + 1})" if where else ""
        raise BadInput(f"the scenario is not YAML: {problem}{place}", rule="syntax") from error
    return builder.value


@dataclass(slots=True)
class _Container:
    """A list or mapping being filled. `key`: of the value to come; `weight`: values in it, aliases expanded."""

    value: Any
    anchor: str | None
    key: object = None
    weight: int = 1


class _Builder:
    """Builds the value of a stream of events."""

    def __init__(self) -> None:
        self.value: Any = None
        self.documents = 0
        self.open: list[_Container] = []
        self.total = 0
        self.anchors: dict[str, tuple[Any, int]] = {}

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            if event.anchor:
                self.anchors[event.anchor] = (value, 1)
            self._put(value, 1, event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._start({} if isinstance(event, yaml.MappingStartEvent) else [], event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end(event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self._refused(event, f"alias {event.anchor} stands for nothing that was finished before it")
            value, weight = self.anchors[event.anchor]
            self._put(value, weight, event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self._refused(event, "the text holds more than one document")

    def _start(self, container: Any, event: Any) -> None:
        self._check_tag(event)
        if len(self.open) >= DEPTH_MOST:
            raise self._refused(event, f"nested deeper than {DEPTH_MOST}")
        if self.open and isinstance(self.open[-1].value, dict) and self.open[-1].key is None:
            raise self._refused(event, "a key must be plain text")
        self.open.append(_Container(container, event.anchor))

    def _end(self, event: Any) -> None:
        ended = self.open.pop()
        if ended.anchor:
            self.anchors[ended.anchor] = (ended.value, ended.weight)
        self.total -= ended.weight  # counted again as a part of its container
        self._put(ended.value, ended.weight, event)

    def _put(self, value: Any, weight: int, event: Any) -> None:
        self.total += weight
        if self.total > VALUES_MOST:
            raise TooLarge(f"the scenario holds more than {VALUES_MOST} values", rule="size")
        if not self.open:
            self.value = value
            return
        container = self.open[-1]
        container.weight += weight
        target, key = container.value, container.key
        if isinstance(target, list):
            target.append(value)
            return
        if key is None:
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refused(event, "a key must be plain text")
            container.key = _MERGE if event.value == "<<" and event.implicit[0] else event.value
            return
        container.key = None
        if key is _MERGE:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise self._refused(event, "only mappings can be merged")
                for inherited, part in source.items():
                    target.setdefault(inherited, part)
        else:
            target[key] = value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        self._check_tag(event)
        text = event.value
        if not event.implicit[0] or event.style in ("'", '"', "|", ">"):
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _check_tag(self, event: Any) -> None:
        if event.tag and event.tag != "!" and event.tag not in _TAGS:
            raise self._refused(event, f"tag {event.tag[:40]} is not taken")

    @staticmethod
    def _refused(event: Any, problem: str) -> BadInput:
        mark = event.start_mark
        return BadInput(f"the scenario's YAML is refused: {problem} (line {mark.line + 1})", rule="syntax")
