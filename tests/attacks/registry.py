"""The attacks by name: every module of `tests.attacks.attacks` registers its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.attacks import attacks
from tests.attacks.target import Target

Run = Callable[[Target], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. Those of one window run together."""

    name: str
    window: str
    run: Run


_attacks: dict[str, Attack] = {}


def attack(name: str, *, window: str) -> Callable[[Run], Run]:
    """Register a coroutine function that attacks until it is cancelled."""

    def register(run: Run) -> Run:
        if name in _attacks:
            raise ValueError(f"two attacks are called {name}")
        _attacks[name] = Attack(name, window, run)
        return run

    return register


def all_attacks() -> dict[str, Attack]:
    """Every attack by name."""
    for module in pkgutil.iter_modules(attacks.__path__):
        importlib.import_module(f"{attacks.__name__}.{module.name}")
    return dict(sorted(_attacks.items()))


def windows() -> dict[str, list[str]]:
    """Names of the attacks that run together, by window."""
    found: dict[str, list[str]] = {}
    for one in all_attacks().values():
        found.setdefault(one.window, []).append(one.name)
    return dict(sorted(found.items()))
