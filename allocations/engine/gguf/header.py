"""Reads the header of a GGUF file: the few values that an estimate needs, and the bytes of each tensor.

Called by `manage.py estimate` and by `manage.py simulate` for models that name a file. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 1 to 3, little and big endian. Invariants:

- Arrays are skipped; of strings and arrays only those in `KEPT` are kept, up to a bound.
- No count or length of the file is trusted: each is below a bound or within the file before it is used, and none
  decides how much is allocated. Reading takes one window of `WINDOW` bytes, and the names of at most `TENSORS_MOST`
  tensors.
- Only `GgufInvalid` is raised, and what `read` of the file raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO, Final, NamedTuple

import msgspec

from access.errors import BadInput
from allocations.engine.gguf.sizes import tensor_bytes

MAGIC: Final = b"GGUF"
WINDOW: Final = 1 << 20
HEADER_MOST: Final = 1 << 28
"""Bytes of a header that are read or skipped one by one: far above any model's."""
VALUES_MOST: Final = 4_096
TENSORS_MOST: Final = 32_768
STRINGS_MOST: Final = 2_000_000
"""In all arrays of strings together: the largest vocabularies have 300,000, and as many merges."""
KEY_LONGEST: Final = 1_024
TEXT_LONGEST: Final = 1_024
"""Of a text that is kept."""
DIMENSIONS_MOST: Final = 4
LAYERS_MOST: Final = 4_096
KEPT_MOST: Final = 4 * LAYERS_MOST
"""Numbers and texts that are kept; several architectures may be told of."""
ELEMENTS_MOST: Final = 1 << 50
NESTED_MOST: Final = 4

TOKENS: Final = "tokenizer.ggml.tokens"
SPLIT: Final = "split.count"
"""Files that the model is written in, where it is more than one: each lists its own tensors alone."""
GENERAL: Final = frozenset({"general.architecture", "general.type", "general.name", SPLIT})
KEPT: Final = frozenset(
    {
        *("block_count", "context_length", "embedding_length", "vocab_size", "vision.block_count"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        "attention.sliding_window",
    }
)
"""Keys of an architecture, without its name."""

Value = int | float | bool | str | tuple[int, ...]


class GgufInvalid(BadInput):
    """The file is no GGUF file, or breaks a rule of the format; the text is one sentence."""


class Tensor(NamedTuple):
    """A tensor and its bytes."""

    name: str
    size_bytes: int


class Header(msgspec.Struct, frozen=True):
    """What is kept. `tokens`: entries of the vocabulary, 0 where the file lists none."""

    architecture: str
    values: dict[str, Value]
    tokens: int
    tensors: tuple[Tensor, ...]

    def number(self, key: str) -> int | tuple[int, ...] | None:
        """A whole number of the architecture (`block_count`), or one for each layer. Raises GgufInvalid."""
        value = self.values.get(f"{self.architecture}.{key}")
        if value is None or isinstance(value, tuple):
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise GgufInvalid(f"{self.architecture}.{key} is not a whole number", field=key, rule="type")
        return value


class _Scalar(NamedTuple):
    code: str
    size: int
    whole: bool


_SCALARS: Final[dict[int, _Scalar]] = {
    0: _Scalar("B", 1, whole=True),
    1: _Scalar("b", 1, whole=True),
    2: _Scalar("H", 2, whole=True),
    3: _Scalar("h", 2, whole=True),
    4: _Scalar("I", 4, whole=True),
    5: _Scalar("i", 4, whole=True),
    6: _Scalar("f", 4, whole=False),
    7: _Scalar("?", 1, whole=False),
    10: _Scalar("Q", 8, whole=True),
    11: _Scalar("q", 8, whole=True),
    12: _Scalar("d", 8, whole=False),
}
_STRING: Final = 8
_ARRAY: Final = 9
_ARRAY_COSTS: Final = 16
"""Strings that take as long to skip as an array in an array, which no model has."""


def read_header(file: BinaryIO) -> Header:
    """The header of a file that can seek. Raises GgufInvalid, OSError."""
    return _Reader(_Source(file)).header()


class _Source:
    """A window on the file that moves forward only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        self._begin = 0
        self._window = b""
        self._at = 0
        self.order = "<"

    @property
    def place(self) -> int:
        return self._begin + self._at

    def take(self, count: int, what: str) -> bytes:
        """The next bytes, of which the caller has bounded the number."""
        self._have(count, what)
        taken = self._window[self._at : self._at + count]
        self._at += count
        return taken

    def number(self, code: str, size: int, what: str) -> int | float | bool:
        """One number of a format of `struct`."""
        found: int | float | bool = struct.unpack(self.order + code, self.take(size, what))[0]
        return found

    def skip(self, count: int, what: str) -> None:
        """Pass over bytes, however many the file says."""
        self._move(self.place + count, what)

    def skip_strings(self, count: int, code: str, size: int, what: str) -> None:
        """Pass over strings, each behind its length. The hot loop of a header: most of it is vocabulary."""
        length_of: Callable[[bytes, int], tuple[int]] = struct.Struct(self.order + code).unpack_from
        left = count
        while left:
            self._have(size, what)
            window, at, done = self._window, self._at, 0
            try:
                for done in range(left):  # noqa: B007 - how many were passed over, where the window ends
                    at += size + length_of(window, at)[0]
                left = 0
            except (struct.error, OverflowError):  # the next length is not in the window; `_have` saw to the first
                left -= done
            self._move(self._begin + at, what)

    def _have(self, count: int, what: str) -> None:
        """Have so many bytes in the window."""
        if len(self._window) - self._at >= count:
            return
        if self.place + count > min(self._size, HEADER_MOST):
            raise self._ended(what)
        self._begin, self._at = self.place, 0
        self._file.seek(self._begin)
        self._window = self._file.read(max(count, WINDOW))
        if len(self._window) < count:
            raise self._ended(what)

    def _move(self, place: int, what: str) -> None:
        if place > min(self._size, HEADER_MOST):
            raise self._ended(what)
        self._at = place - self._begin
        if self._at > len(self._window):
            self._begin, self._at, self._window = place, 0, b""

    def _ended(self, what: str) -> GgufInvalid:
        if self._size > HEADER_MOST:
            return GgufInvalid(f"the header is longer than {HEADER_MOST >> 20} MiB, in {what}", rule="size")
        return GgufInvalid(f"the file ends in the middle of {what}", rule="truncated")


class _Reader:
    """Reads one header, in its order."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._wide, self._wide_size = "Q", 8
        self._strings = 0
        self._tokens = 0
        self._kept = 0
        self._values: dict[str, Value] = {}

    def header(self) -> Header:
        source = self._source
        if source.take(4, "its first bytes") != MAGIC:
            raise GgufInvalid("it is not a GGUF file: it does not begin with GGUF", rule="magic")
        self._version()
        tensors = self._count("tensors", TENSORS_MOST)
        values = self._count("values", VALUES_MOST)
        for number in range(values):
            self._pair(number)
        listed = tuple(self._tensor(number) for number in range(tensors))
        architecture = self._values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise GgufInvalid("the file does not say its general.architecture", rule="architecture")
        files = self._values.pop(SPLIT, 1)
        if not isinstance(files, int) or files > 1:
            raise GgufInvalid(f"it is one of {files} files of its model; write the memory at the model", rule="split")
        return Header(architecture, self._values, self._tokens, listed)

    def _version(self) -> None:
        raw = self._source.take(4, "its version")
        little, big = (int.from_bytes(raw, order) for order in ("little", "big"))
        version = min(little, big)
        if version not in (1, 2, 3):
            raise GgufInvalid(f"version {version} of GGUF is not known; 1 to 3 are", rule="version")
        self._source.order = "<" if little == version else ">"
        if version == 1:
            self._wide, self._wide_size = "I", 4

    def _wide_number(self, what: str) -> int:
        return int(self._source.number(self._wide, self._wide_size, what))

    def _count(self, what: str, most: int) -> int:
        count = self._wide_number(f"the number of {what}")
        if count > most:
            raise GgufInvalid(f"the file says {count} {what}; at most {most} are read", rule="too-many")
        return count

    def _text(self, what: str, longest: int) -> str:
        length = self._wide_number(what)
        if length > longest:
            raise GgufInvalid(f"{what} has {length} bytes; at most {longest} are read", rule="text")
        return self._source.take(length, what).decode("utf-8", "replace")

    def _pair(self, number: int) -> None:
        key = self._text(f"the key of value {number + 1}", KEY_LONGEST)
        what = f"value {_shown(key)}"
        kind = int(self._source.number("I", 4, what))
        kept = key in GENERAL or key.partition(".")[2] in KEPT
        if kind == _ARRAY:
            self._array(key, what, kept=kept)
        elif kind == _STRING:
            if kept:
                self._keep(key, self._text(what, TEXT_LONGEST))
            else:
                self._source.skip(self._wide_number(what), what)
        else:
            scalar = self._scalar(kind, what)
            value = self._source.number(scalar.code, scalar.size, what)
            if kept:
                self._keep(key, value)

    def _keep(self, key: str, value: Value) -> None:
        self._kept += len(value) if isinstance(value, tuple) else 1
        if self._kept > KEPT_MOST:
            raise GgufInvalid(f"the file says more than {KEPT_MOST} numbers of its architecture", rule="too-many")
        self._values[key] = value

    def _scalar(self, kind: int, what: str) -> _Scalar:
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise GgufInvalid(f"{what} is of type {kind}, which GGUF does not have", rule="type")
        return scalar

    def _array(self, key: str, what: str, *, kept: bool, depth: int = 1) -> None:
        if depth > NESTED_MOST:
            raise GgufInvalid(f"{what} is nested deeper than {NESTED_MOST} arrays", rule="type")
        kind = int(self._source.number("I", 4, what))
        count = self._wide_number(what)
        if key == TOKENS and depth == 1:
            self._tokens = count
        if kind in (_STRING, _ARRAY):
            self._strings += count if kind == _STRING else count * _ARRAY_COSTS
            if self._strings > STRINGS_MOST:
                raise GgufInvalid(
                    f"the arrays up to {what} say {self._strings} entries; at most {STRINGS_MOST} are read",
                    rule="too-many",
                )
        if kind == _STRING:
            self._source.skip_strings(count, self._wide, self._wide_size, what)
        elif kind == _ARRAY:
            for _ in range(count):
                self._array(key, what, kept=False, depth=depth + 1)
        else:
            scalar = self._scalar(kind, what)
            if kept and scalar.whole:
                self._keep(key, self._numbers(scalar, count, what))
            else:
                self._source.skip(count * scalar.size, what)

    def _numbers(self, scalar: _Scalar, count: int, what: str) -> tuple[int, ...]:
        """One number for each layer."""
        if not 0 < count <= LAYERS_MOST:
            raise GgufInvalid(f"{what} has {count} numbers; 1 to {LAYERS_MOST} are read", rule="too-many")
        raw = self._source.take(count * scalar.size, what)
        numbers = struct.unpack(f"{self._source.order}{count}{scalar.code}", raw)
        if min(numbers) < 0:
            raise GgufInvalid(f"{what} has a number below 0", rule="range")
        return tuple(map(int, numbers))

    def _tensor(self, number: int) -> Tensor:
        name = self._text(f"the name of tensor {number + 1}", KEY_LONGEST)
        what = f"tensor {_shown(name)}"
        dimensions = int(self._source.number("I", 4, what))
        if dimensions > DIMENSIONS_MOST:
            raise GgufInvalid(f"{what} has {dimensions} dimensions; GGUF has at most {DIMENSIONS_MOST}", rule="range")
        elements = 1
        for _ in range(dimensions):
            elements *= self._wide_number(what)
        if elements > ELEMENTS_MOST:
            raise GgufInvalid(f"{what} has more elements than any model", rule="range")
        kind = int(self._source.number("I", 4, what))
        self._source.number("Q", 8, what)  # where its data begins
        size = tensor_bytes(elements, kind)
        if size is None:
            raise GgufInvalid(f"{what} is of type {kind}, whose size is not known", rule="type")
        return Tensor(name, size)


def _shown(name: str) -> str:
    """A name for a message: printable, and not long."""
    clean = "".join(character if character.isprintable() else "?" for character in name[:65])
    return clean if len(name) <= 64 else f"{clean[:64]}…"
