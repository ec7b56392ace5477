"""The page of nodes that an explanation tells, as the pages of a pod and of a claim show it."""

from __future__ import annotations

from typing import Any

from access.pages import PageRequest, asked_word
from allocations.explain import NodesAsked

LONGEST_NAME = 253


def nodes_shown(request: PageRequest) -> NodesAsked:
    """Which page of nodes is asked for."""
    return NodesAsked(after=asked_word(request, "nodes_after")[:LONGEST_NAME])


def with_lines(told: dict[str, Any]) -> dict[str, Any]:
    """The answer with the devices of each node put together by their reason: `gpu 0, 1`, and why."""
    return told | {"nodes": [node | {"lines": _lines(node["devices"])} for node in told["nodes"]]}


def _lines(devices: list[dict[str, Any]]) -> list[dict[str, str]]:
    by_reason: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        reason = device["reason"] or "could serve"
        by_reason.setdefault(reason, {}).setdefault(device["type"], []).append(str(device["minor"]))
    return [
        {"reason": reason, "devices": "; ".join(f"{kind} {', '.join(minors)}" for kind, minors in by_type.items())}
        for reason, by_type in by_reason.items()
    ]
