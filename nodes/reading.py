"""Reads fields of decoded JSON or YAML, with the field's path and the rule in every refusal.

Called by `nodes.inventory` and `allocations.scenario`. Kept true: nothing raises anything but
`BadInput`; numbers and flags that came as text (`"0"`, `"true"`) are taken for what they say; a key
that is nearly a known one is refused as a slip of the pen, and any other unknown key too where the
object is read strictly. Elsewhere it is passed over, so that newer senders may say more.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from access.errors import BadInput, TooLarge
from kube.names import InvalidName

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_SHOWN: Final = 64
_FLAGS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def within(path: str, key: str | int) -> str:
    """`nodes[3]`, `nodes[3].name`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def read_object(value: object, path: str, known: Collection[str], *, strict: bool = False) -> Mapping[str, Any]:
    """The value as an object; a key that looks like a misspelt known one is refused, `strict`: any unknown one."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{path or 'the body'} must be an object", field=path, rule="type")
    for key in value:
        if key in known:
            continue
        shown = str(key)[:_SHOWN]
        near = difflib.get_close_matches(shown, known, n=1, cutoff=0.8)
        if near or strict:
            field = within(path, shown)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise BadInput(f"{field} is not a field; {advice}", field=field, rule="unknown-field")
    return value


def read_list(value: object, path: str, *, most: int) -> list[Any]:
    """A list of at most so many entries; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise BadInput(f"{path} must be a list", field=path, rule="type")
    if len(value) > most:
        raise TooLarge(f"{path} has {len(value)} entries, at most {most} are taken", field=path, rule="too-many")
    return list(value)


def read_integer(value: object, path: str, *, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{path} must be a whole number", field=path, rule="type")
    if not least <= value <= most:
        raise BadInput(f"{path} must be {least} to {most}", field=path, rule="range")
    return value


def read_text(value: object, path: str, *, longest: int) -> str:
    """Printable text of at most so many characters; numbers are taken as written, None is empty."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadInput(f"{path} must be text", field=path, rule="type")
    if len(value) > longest or not value.isprintable():
        raise BadInput(f"{path} must be at most {longest} printable characters", field=path, rule="text")
    return value


def read_flag(value: object, path: str, *, default: bool) -> bool:
    """True or false."""
    if value is None:
        return default
    if isinstance(value, str):
        value = _FLAGS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise BadInput(f"{path} must be true or false", field=path, rule="type")
    return value


def read_choice(value: object, path: str, *, choices: Collection[str], default: str) -> str:
    """One of the choices."""
    if value is None or value == "":
        return default
    if not isinstance(value, str) or value not in choices:
        raise BadInput(f"{path} must be one of {', '.join(sorted(choices))}", field=path, rule="choice")
    return value


def read_name(value: object, path: str, check: Callable[..., str]) -> str:
    """Text that passes a check of `kube.names`; a missing one is told as missing."""
    if value is None or value == "":
        raise BadInput(f"{path} is required", field=path, rule="required")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        return check(value, what=path)
    except InvalidName as error:
        raise BadInput(str(error), field=path, rule=error.rule) from error
