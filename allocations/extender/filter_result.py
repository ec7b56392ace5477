"""What filter answers, before it is encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allocations.engine.decision import Reason


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Names of the nodes that `passed`; node → reason for others. `kinds`: the sorts of reasons of a refusal."""

    passed: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    kinds: Sequence[str] = ()


def refused(names: Sequence[str], reason: Reason) -> FilterResult:
    """Every node refused for this reason."""
    nodes = dict.fromkeys(names, reason.text)
    return FilterResult((), nodes if reason.resolvable else {}, {} if reason.resolvable else nodes, [reason.kind])
