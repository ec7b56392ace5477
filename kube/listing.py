"""Decoding of API answers: one object, a chunk of a list, a whole listing.

Used by `kube.client` and `kube.watch`. Kept true: an object of a list that cannot be decoded is set apart and
told, and never hides the others; one list is one snapshot.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from kube.errors import Unintelligible
from kube.objects import ObjectMeta

T = TypeVar("T")

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for objects of the whole cluster."""


class Named(msgspec.Struct):
    """The least that every object has."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return (self.metadata.namespace, self.metadata.name)


class Unreadable(msgspec.Struct, frozen=True):
    """An object that exists but is not of the form expected. `why` names the field."""

    key: Key
    raw: bytes
    why: str


class Listing(msgspec.Struct, Generic[T]):
    """Everything that a list found at `resource_version`."""

    items: list[T]
    resource_version: str
    unreadable: list[Unreadable] = []


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Chunk(msgspec.Struct):
    metadata: _ListMeta
    items: msgspec.Raw = msgspec.Raw(b"[]")


class Chunk(msgspec.Struct, Generic[T]):
    """One page of a list; `next_token` is empty on the last."""

    items: list[T]
    unreadable: list[Unreadable]
    resource_version: str
    next_token: str


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
"""One decoder a type. Filled by any thread; making one twice does no harm."""


def _decoder(kind: object) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def decode(body: bytes | msgspec.Raw, kind: type[T], *, request: str = "") -> T:
    """One object. Raises `Unintelligible`."""
    try:
        item: T = _decoder(kind).decode(body)
    except msgspec.DecodeError as error:
        raise Unintelligible(str(error), request=request) from error
    return item


def decode_each(raw: bytes | msgspec.Raw, kind: type[T]) -> T | Unreadable:
    """One object of a list or watch: itself, or why it cannot be read. Raises `Unintelligible` if it is no object at all."""
    try:
        item: T = _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        return Unreadable(key=decode(raw, Named).key, raw=bytes(raw), why=str(error))
    return item


def decode_chunk(body: bytes, kind: type[T], *, request: str = "") -> Chunk[T]:
    """One page of a list, in one pass; object by object only where one of them is malformed. Raises `Unintelligible`."""
    page = decode(body, _Chunk, request=request)
    items: list[T] = []
    unreadable: list[Unreadable] = []
    try:
        items = _decoder(list[kind] | None).decode(page.items) or []  # type: ignore[valid-type]  # known at run time only
    except msgspec.ValidationError:
        for raw in decode(page.items, list[msgspec.Raw], request=request):
            item = decode_each(raw, kind)
            if isinstance(item, Unreadable):
                unreadable.append(item)
            else:
                items.append(item)
    except msgspec.DecodeError as error:
        raise Unintelligible(str(error), request=request) from error
    return Chunk(items, unreadable, page.metadata.resource_version, page.metadata.continue_)
