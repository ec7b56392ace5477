"""Reads fields of forms for services, and shows their errors at the field that they name.

Invariants: what is read holds no NUL, which no database takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from django.http import HttpRequest

from access.errors import BadInput, Conflict, Unavailable

C = TypeVar("C")
E = TypeVar("E", bound=Enum)
LONGEST = 253
"""Characters of the longest name that a form or a query takes: a node's."""


@dataclass(frozen=True, slots=True)
class FormProblem:
    """Why a form was refused, and the field that says so."""

    field: str
    text: str


def form_problem(error: BadInput | Conflict | Unavailable, *, otherwise: str) -> FormProblem:
    """The error at its field; at `otherwise` where it names none."""
    return FormProblem(field=getattr(error, "field", "") or otherwise, text=str(error))


def word(request: HttpRequest, name: str, *, longest: int = LONGEST) -> str:
    """One word of a form, without white space around it."""
    return request.POST.get(name, "").replace("\x00", "").strip()[:longest]


def words(request: HttpRequest, name: str) -> list[str]:
    """Words apart by commas or white space."""
    return request.POST.get(name, "").replace("\x00", "").replace(",", " ").split()


def chosen(kind: type[E], request: HttpRequest, name: str) -> E:
    """One of an enumeration's values. Raises BadInput."""
    try:
        return kind(request.POST.get(name, ""))
    except ValueError as error:
        raise BadInput(f"choose one {name} of the list", field=name, rule=name) from error


def chosen_change(changes: Mapping[str, C], change: str) -> C:
    """The function of a change by its name. Raises BadInput."""
    if change not in changes:
        raise BadInput("there is no such change", field="change", rule="change")
    return changes[change]


def ids(request: HttpRequest, name: str) -> list[int]:
    """Ids of the rows that were ticked; anything else is passed over."""
    numbers = (whole_number(text, most_digits=18) for text in request.POST.getlist(name))
    return [number for number in numbers if number is not None]


def whole_number(text: str, *, most_digits: int) -> int | None:
    """The number that ASCII digits write; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= most_digits else None


def fresh_password(request: HttpRequest) -> str:
    """A new password, typed twice alike. Raises BadInput."""
    password = request.POST.get("password", "")
    if not password:
        raise BadInput("a person needs a password", field="password", rule="required")
    if password != request.POST.get("again", ""):
        raise BadInput("the two passwords differ", field="again", rule="again")
    return password
