"""Reads fields of decoded JSON or YAML; errors name the field's path and the rule.

Called by `nodes.inventory` and `allocations.scenario`. Invariants: only `BadInput` is raised; numbers and flags may be
text (`"0"`, `"true"`); a key similar to a known one is refused as a typo, any other unknown key only where the object
is read strictly, so that newer senders may say more.
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


def bad_field(path: str, problem: str, *, rule: str) -> BadInput:
    """The error for the field at `path`, whose `problem` is `must be a list`."""
    return BadInput(f"{path} {problem}", field=path, rule=rule)


def within(path: str, key: str | int) -> str:
    """`nodes[3]`, `nodes[3].name`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def read_object(value: object, path: str, known: Collection[str], *, strict: bool = False) -> Mapping[str, Any]:
    """An object, without keys similar to known ones; `strict`: without any unknown key."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{path or 'the body'} must be an object", field=path, rule="type")
    for key in value:
        if key in known:
            continue
        shown = str(key)[:_SHOWN]
        near = difflib.get_close_matches(shown, known, n=1, cutoff=0.8)
        if near or strict:
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise bad_field(within(path, shown), f"is not a field; {advice}", rule="unknown-field")
    return value


def read_list(value: object, path: str, *, most: int) -> list[Any]:
    """A list of at most `most` entries; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise bad_field(path, "must be a list", rule="type")
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
        raise bad_field(path, "must be a whole number", rule="type")
    if not least <= value <= most:
        raise bad_field(path, f"must be {least} to {most}", rule="range")
    return value


def read_text(value: object, path: str, *, longest: int) -> str:
    """Printable text of at most `longest` characters; numbers are converted, None is empty."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise bad_field(path, "must be text", rule="type")
    if len(value) > longest or not value.isprintable():
        raise bad_field(path, f"must be at most {longest} printable characters", rule="text")
    return value


def read_flag(value: object, path: str, *, default: bool) -> bool:
    """True or false."""
    if value is None:
        return default
    if isinstance(value, str):
        value = _FLAGS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise bad_field(path, "must be true or false", rule="type")
    return value


def read_choice(value: object, path: str, *, choices: Collection[str], default: str) -> str:
    """One of the choices."""
    if value is None or value == "":
        return default
    if not isinstance(value, str) or value not in choices:
        raise bad_field(path, f"must be one of {', '.join(sorted(choices))}", rule="choice")
    return value


def read_name(value: object, path: str, check: Callable[..., str]) -> str:
    """Required text that passes a check of `kube.names`."""
    if value is None or value == "":
        raise bad_field(path, "is required", rule="required")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        return check(value, what=path)
    except InvalidName as error:
        raise BadInput(str(error), field=path, rule=error.rule) from error
