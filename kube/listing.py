"""Decoding of API answers: one object, a chunk of a list, a whole listing.

Invariants: an object of a list that cannot be decoded is returned as `Unreadable` and does not hide the others; no text
holds NUL (what is given raw is part of an answer that `decode` has cleaned).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from kube.errors import Unintelligible
from kube.objects import Key, Named
from kube.text import without_nul

T = TypeVar("T")


class Unreadable(msgspec.Struct, frozen=True):
    """An object that could not be decoded. `why` names the field."""

    key: Key
    raw: bytes
    why: str


class Listing(msgspec.Struct, Generic[T]):
    """The objects of a collection at `resource_version`, or a page of them; `next_token` is empty on the last page."""

    items: list[T]
    resource_version: str
    unreadable: list[Unreadable]
    next_token: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Chunk(msgspec.Struct):
    metadata: _ListMeta
    items: msgspec.Raw = msgspec.Raw(b"[]")


_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = cache(msgspec.json.Decoder)


def decode(body: bytes | msgspec.Raw, kind: type[T], *, request: str = "") -> T:
    """One object. Raises `Unintelligible`."""
    try:
        item: T = _decoder(kind).decode(without_nul(body) if isinstance(body, bytes) else body)
    except msgspec.DecodeError as error:
        raise Unintelligible(str(error), request=request) from error
    return item


def decode_each(raw: bytes | msgspec.Raw, kind: type[T]) -> T | Unreadable:
    """One object of a list or watch. Raises `Unintelligible` if it is not an object at all."""
    try:
        item: T = _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        return Unreadable(key=decode(raw, Named).key, raw=bytes(raw), why=str(error))
    return item


def decode_chunk(body: bytes, kind: type[T], *, request: str = "") -> Listing[T]:
    """One page of a list, decoded object by object only if one is malformed. Raises `Unintelligible`."""
    page = decode(body, _Chunk, request=request)
    items: list[T] = []
    unreadable: list[Unreadable] = []
    try:
        items = _decoder(list[kind] | None).decode(page.items) or []  # type: ignore[valid-type]  # of the run time
    except msgspec.ValidationError:
        for raw in decode(page.items, list[msgspec.Raw], request=request):
            item = decode_each(raw, kind)
            if isinstance(item, Unreadable):
                unreadable.append(item)
            else:
                items.append(item)
    except msgspec.DecodeError as error:
        raise Unintelligible(str(error), request=request) from error
    return Listing(items, page.metadata.resource_version, unreadable, page.metadata.continue_)
