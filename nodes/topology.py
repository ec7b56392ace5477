"""NVLink islands of a node: GPUs that are connected by NVLinks. Pure.

Called by `nodes.services` for inventories; the engine derives the same islands. Invariants: a pair listed twice counts
the smaller number, order and direction do not matter, and links to unknown GPUs are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Link = tuple[int, int, int]
"""(minor, minor, NVLinks between them)."""


def normal_links(links: Iterable[Sequence[int]]) -> list[Link]:
    """Each pair once, lower minor first, sorted; pairs without a link and links to oneself left out."""
    return [(one, other, count) for (one, other), count in sorted(_counted(links).items())]


def islands(minors: Iterable[int], links: Iterable[Sequence[int]]) -> dict[int, int]:
    """Minor → island number; islands are numbered by their lowest minor. A GPU without links is an island."""
    ordered = sorted(set(minors))
    root = {minor: minor for minor in ordered}

    def find(minor: int) -> int:
        while root[minor] != minor:
            root[minor] = root[root[minor]]
            minor = root[minor]
        return minor

    for one, other in _counted(links):
        if one in root and other in root:
            here, there = find(one), find(other)
            if here < there:
                root[there] = here
            elif there < here:
                root[here] = there
    numbers = {minor: number for number, minor in enumerate(m for m in ordered if root[m] == m)}
    return {minor: numbers[find(minor)] for minor in ordered}


def _counted(links: Iterable[Sequence[int]]) -> dict[tuple[int, int], int]:
    counted: dict[tuple[int, int], int] = {}
    for one, other, count in links:
        pair = (one, other) if one < other else (other, one)
        before = counted.get(pair)
        if before is None or count < before:
            counted[pair] = count
    return {pair: count for pair, count in counted.items() if count > 0 and pair[0] != pair[1]}
