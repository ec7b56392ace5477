"""Bodies in and out: JSON and YAML parsed strictly, JSON written by orjson.

Invariants:
- A view gets plain JSON values (no NaN, no NUL, no lone surrogates, no YAML tags or anchors), or the request ends with
  a problem 400 or 413.
- The number of values, their depth, and the length of texts are bounded. Values are counted before any is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import IO, Any

import orjson
import yaml
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from typing_extensions import override

from access.errors import TooLarge
from kube.bounded import REST_VALUES_MOST, TooManyValues, check_values

DEEPEST = 64
"""Levels of nesting; the deepest manifest has ten."""
LONGEST_TEXT = 256 * 1024
"""Characters of one text; all annotations of an object may have 256 KiB together."""
YAML_BYTES_MOST = 1024 * 1024
YAML_EVENTS_MOST = 200_000
"""Values, and beginnings and ends of collections: half a second of one processor."""
LONGEST_PLAIN = 4_096
"""Characters of a YAML scalar without quotes: `1:1:1:…` is a number of base 60, and a long one takes minutes."""
OTHER_YAML_TYPES = frozenset({"application/x-yaml", "text/yaml"})
"""In use before `application/yaml` was registered."""

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class JsonParser(BaseParser):
    """`application/json`."""

    media_type = "application/json"

    @override
    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The value. Raises ParseError."""
        return read_json(stream.read())


class MergePatchParser(JsonParser):
    """`application/merge-patch+json` (RFC 7386)."""

    media_type = "application/merge-patch+json"


class YamlParser(BaseParser):
    """`application/yaml`."""

    media_type = "application/yaml"

    @override
    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The value. Raises ParseError."""
        return read_yaml(stream.read())


class JsonRenderer(BaseRenderer):
    """JSON in UTF-8."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "binary"

    @override
    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """The bytes; nothing for no data."""
        return b"" if data is None else orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)


class OneFormat(BaseContentNegotiation):
    """Answers are JSON whatever `Accept` says: a browser shows them too."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """The parser of the body's media type, None: 415. Parameters such as charset do not matter."""
        content_type = (request.content_type or "").partition(";")[0].strip().lower()
        media_type = "application/yaml" if content_type in OTHER_YAML_TYPES else content_type
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    @override
    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """The first."""
        return renderers[0], renderers[0].media_type


def read_json(body: bytes) -> Any:
    """A JSON text's value. Raises ParseError."""
    if not body.strip():
        raise ParseError("the body is empty")
    try:
        check_values(body, most=REST_VALUES_MOST)
        value = orjson.loads(body)
    except TooManyValues as error:
        raise TooLarge(f"the body is too large: {error}", rule="size") from error
    except orjson.JSONDecodeError as error:
        raise ParseError(f"the body is not JSON: {error}") from error
    check_plain(value)
    return value


def read_yaml(body: bytes) -> Any:
    """The value of a YAML text of one document without anchors. Raises ParseError, TooLarge."""
    if len(body) > YAML_BYTES_MOST:
        raise TooLarge(f"YAML may have {YAML_BYTES_MOST} bytes; send larger bodies as JSON", rule="size")
    try:
        text = body.decode("utf-8")
        _check_events(text)
        value = yaml.load(text, Loader=YAML_LOADER)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ParseError(f"the body is not YAML: {' '.join(str(error).split())[:300]}") from error
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        # a date, number or key that Python has no value for
        raise ParseError(f"the body is not YAML that means anything: {str(error)[:300]}") from error
    if value is None:
        raise ParseError("the body is empty")
    check_plain(value)
    return value


def _check_events(text: str) -> None:
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=YAML_LOADER)
    for number, event in enumerate(events):
        if number >= YAML_EVENTS_MOST:
            raise TooLarge(f"YAML may have {YAML_EVENTS_MOST} values; send larger bodies as JSON", rule="size")
        if getattr(event, "tag", None):  # `!!int "1:1:1:…"` has the meaning of a plain scalar of any length
            raise ParseError("YAML tags are not accepted")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and len(event.value) > LONGEST_PLAIN:
            raise ParseError(f"a value of more than {LONGEST_PLAIN} characters must stand in quotes")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ParseError("YAML anchors and aliases are not accepted")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise ParseError(f"the body is nested deeper than {DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def check_plain(value: Any) -> None:
    """Refuse what JSON cannot say or the database cannot keep. Raises ParseError."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                if len(one) > LONGEST_TEXT:
                    raise ParseError(f"a text has more than {LONGEST_TEXT} characters")
                if "\x00" in one or not _encodable(one):
                    raise ParseError("the body holds a character that cannot be stored")
            elif isinstance(one, dict):
                if not all(isinstance(key, str) for key in one):
                    raise ParseError("keys must be text")
                below.extend(one)
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
            elif isinstance(one, float):
                if not math.isfinite(one):
                    raise ParseError("NaN and infinities are not numbers here")
            elif isinstance(one, int):
                if not -(2**63) <= one < 2**64:
                    raise ParseError("a whole number is too large")
            elif one is not None:
                raise ParseError(f"a value of the kind {type(one).__name__} is not accepted; write it in quotes")
        if not below:
            return
        level = below
    raise ParseError(f"the body is nested deeper than {DEEPEST} levels")


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
