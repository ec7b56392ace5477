"""The decision: which node and which devices serve a request (DESIGN §2, Topology).

Called by filter, prioritize, bind, preempt, REST claims, explain and the what-if page. Pure: the
same picture and request give the same Decision, whatever order things came in. Kept true: every
device granted fits in the picture given; a node that could serve is never refused.

Everything is worked out for all nodes at once; only nodes still tied for best are looked at more
closely, and only the one chosen is looked at device by device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.build import with_freed
from allocations.engine.choice import Chosen, choose_devices, summary_of
from allocations.engine.decision import Decision, Reason
from allocations.engine.index import usage_of
from allocations.engine.joint import Together
from allocations.engine.needs import Need
from allocations.engine.picture import DEVICE_PLUGIN
from allocations.engine.reasons import (
    DEVICE_PLUGIN_MODE,
    NOT_SELECTED,
    kept_out_by_mode,
    summary_text,
    verdicts,
)
from allocations.engine.set_scores import NO_SET
from allocations.engine.sets import best_set
from allocations.engine.several import Several
from allocations.engine.topology import EXACT_UP_TO
from claims.dialects.request import Policy
from kube.device_types import GPU, is_mig

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from allocations.engine.picture import Picture
    from allocations.engine.topology import Topology
    from claims.dialects.request import DeviceRequest

Amounts = tuple[int, int]
"""Core percent and bytes."""

_ISLAND_FIRST = 1 << 52
"""Added to the score of a set that one island holds where `contiguous` ranks nodes; above any score."""


def plan(
    picture: Picture,
    request: DeviceRequest,
    *,
    candidates: Sequence[int] | NDArray[np.integer] | None = None,
    own: Mapping[int, Amounts] | None = None,
    freed: Mapping[int, Amounts] | None = None,
    last: Collection[int] = (),
    blocked: Collection[int] = (),
) -> Decision:
    """Decide one request.

    `candidates`: node rows to choose from, all where None. `own`: device id → (core percent, bytes)
    of the pod's own live hold, counted as free; `freed`: the same of pods that would be evicted.
    `last`: node rows that rank after all others. `blocked`: device ids counted as taken.
    """
    back = [(device, core, memory) for amounts in (own, freed) for device, (core, memory) in (amounts or {}).items()]
    picture = with_freed(picture, back, blocked)
    nodes = picture.index.every_node if candidates is None else _ascending(candidates, len(picture.node_names))
    return _Judge(picture, request, nodes, last, everything=candidates is None).decide()


def _ascending(rows: Sequence[int] | NDArray[np.integer], nodes: int) -> NDArray[np.int32]:
    """The rows in order, each once (twenty times as fast as `np.unique` for thousands)."""
    asked = np.zeros(nodes, dtype=np.bool_)
    asked[np.asarray(rows, dtype=np.int32)] = True
    return np.flatnonzero(asked).astype(np.int32)


class _Judge:
    """One request over one picture; also the account of the Decision it makes."""

    def __init__(
        self,
        picture: Picture,
        request: DeviceRequest,
        candidates: NDArray[np.int32],
        last: Collection[int],
        *,
        everything: bool,
    ) -> None:
        self.picture = picture
        self.request = request
        self.candidates = candidates
        self.everything = everything
        self.last = sorted(last)
        self.needs = [Need(picture, ask) for ask in request.asks]
        self.budget = Budget()
        self.together = Together.of(picture, request, self.needs, self.budget)
        self.several = Several.of(picture, request, self.needs, self.budget)
        self.gpus = next((need for need in self.needs if need.ask.type == GPU), None)
        contiguous = request.policy is Policy.CONTIGUOUS
        self.strict = contiguous and request.policy_strict and self.gpus is not None
        self.feasible = self._feasible()

    @property
    def takes_device_plugin(self) -> bool:
        """Whether the kubelet's own device plugin can back the request, which chooses the devices by itself."""
        return self.request.for_kubelet

    def decide(self) -> Decision:
        """The Decision."""
        node = self._choose()
        if node is None:
            chosen, name, summary = Chosen(()), None, None
        else:
            chosen = choose_devices(
                self.picture,
                self.request,
                self.needs,
                node,
                budget=self.budget,
                together=self.together,
                several=self.several,
            )
            name = self.picture.node_names[node]
            summary = summary_of(self.picture, name, node, chosen.grants)
            if any(is_mig(need.ask.type) for need in self.needs):
                chosen = chosen.for_the_ledger()
        if summary is None:
            code, reasons = self.reasons()
            counts = np.bincount(code, minlength=len(reasons)).tolist() if len(reasons) else []
            told = [(reason.text, count) for reason, count in zip(reasons, counts, strict=True)]
            summary = summary_text(len(self.candidates), told)
        return Decision(
            name,
            chosen.grants,
            self.candidates,
            self.picture.node_names,
            summary,
            self,
            minors=chosen.minors,
            by_kubelet=node is not None and bool(self.picture.node_mode[node] == DEVICE_PLUGIN),
        )

    def reasons(self) -> tuple[NDArray[np.int16], tuple[Reason, ...]]:
        """See `Decision.reason_code` and `Decision.reasons`."""
        pending = np.zeros(len(self.picture.node_names), dtype=np.bool_)
        pending[self.candidates] = True
        feasible = self._serving()
        kept_out = kept_out_by_mode(self.picture, takes_device_plugin=self.takes_device_plugin)
        code, reasons = verdicts(
            self.picture,
            self.needs,
            pending & ~feasible,
            kept_out=kept_out,
            told=NOT_SELECTED if self.request.whole_native else DEVICE_PLUGIN_MODE,
            strict=self.strict,
            together=self.together,
            several=self.several,
        )
        return code[self.candidates], reasons

    def scores(self) -> NDArray[np.float64]:
        """See `Decision.score`: the place in the engine's order, the best one 1."""
        score = np.zeros(len(self.picture.node_names), dtype=np.float64)
        alive = np.flatnonzero(self._serving())
        score[self._ranked(alive)] = np.arange(1, len(alive) + 1) / max(len(alive), 1)
        return score[self.candidates]

    def _ranked(self, alive: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows, the best last."""
        keys = [key(alive) for key in self._keys()]
        return alive[np.lexsort((-alive, *reversed(keys)))]

    def _serving(self) -> NDArray[np.bool_]:
        """[n] candidates that serve, each looked at where several asks meet."""
        return self.feasible if self.several is None else self.several.able(self.feasible)

    def _feasible(self) -> NDArray[np.bool_]:
        """[n] candidates that can serve, as far as each ask alone is concerned where several are for one type."""
        able = self.picture.index.problem_free
        if not self.takes_device_plugin:
            able = able & (self.picture.node_mode != DEVICE_PLUGIN)
        for need in self.needs:
            able = able & need.enough
        if self.strict and self.gpus is not None and self.gpus.ask.count > 1:
            able = able & (self.gpus.most_in_island(self.gpus.fits) >= self.gpus.ask.count)
        if self.together is not None and self.together.required:
            able = able & (self.together.fewest > 0)
        if self.everything:
            return able
        asked = np.zeros(len(able), dtype=np.bool_)
        asked[self.candidates] = True
        return able & asked

    def _choose(self) -> int | None:
        alive = np.flatnonzero(self.feasible)
        if self.several is not None:
            best_first = reversed(self._ranked(alive).tolist())
            return next((node for node in best_first if self.several.serves(node)), None)
        for key in self._keys():
            if len(alive) <= 1:
                break
            worth = key(alive)
            alive = alive[worth == worth.max()]
        return int(alive[0]) if len(alive) else None

    def _keys(self) -> list[Callable[[NDArray[np.intp]], NDArray[np.generic]]]:
        """What ranks nodes, the most important first; each gives [a] numbers for a rows, higher is better."""
        keys: list[Callable[[NDArray[np.intp]], NDArray[np.generic]]] = []
        if self.last:
            keys.append(lambda alive: ~np.isin(alive, self.last))
        if self.together is not None:
            keys.append(self.together.worth)
        sign = -1.0 if self.request.policy is Policy.SPREAD else 1.0
        code = self.needs[0].code if self.needs else -1
        fuller: list[Callable[[NDArray[np.intp]], NDArray[np.generic]]] = []
        if code in self.picture.index.views:
            usage = usage_of(self.picture, code)
            fuller = [
                lambda alive: sign * usage.memory_fraction[alive],
                lambda alive: sign * usage.core_fraction[alive],
            ]
        if self.gpus is None or self.gpus.ask.count == 1 or self.several is not None:
            return keys + fuller
        if self.request.policy is Policy.CONTIGUOUS:
            return [*keys, self._contiguous, *fuller]
        return [*keys, *fuller, self._set_score] if self.gpus.ask.whole else keys + fuller

    def _set_score(self, alive: NDArray[np.intp]) -> NDArray[np.int64]:
        """The score of the best set of each node."""
        return self._sets(alive, within_island=False)

    def _contiguous(self, alive: NDArray[np.intp]) -> NDArray[np.int64]:
        """The same, with every set that one island holds above every set that none does."""
        gpus = self.gpus
        if gpus is None:
            return np.zeros(len(alive), dtype=np.int64)
        if not gpus.ask.whole:
            return np.where(gpus.most_in_island(gpus.fits)[alive] >= gpus.ask.count, _ISLAND_FIRST, 0)
        within = self._sets(alive, within_island=True)
        without = within == NO_SET
        worth = within + _ISLAND_FIRST
        if without.any():
            worth[without] = self._sets(alive[without], within_island=False)
        return worth

    def _sets(self, alive: NDArray[np.intp], *, within_island: bool) -> NDArray[np.int64]:
        """[a] scores of the best sets, NO_SET where there is none."""
        gpus = self.gpus
        worth = np.full(len(alive), NO_SET, dtype=np.int64)
        if gpus is None or gpus.view is None:
            return worth
        count = gpus.ask.count
        exact = gpus.view.count[alive] <= EXACT_UP_TO
        rows = alive[exact]
        worth[exact] = self.picture.index.sets.scores(rows, gpus.masks[rows], count, within_island=within_island)
        budget = Budget()  # of its own each time, so that nodes rank alike whatever was asked before
        alike: dict[tuple[Topology, int], int] = {}
        for place in np.flatnonzero(~exact).tolist():
            node = int(alive[place])
            topology, free = self.picture.node_topology[node], sum(1 << position for position in gpus.positions(node))
            known = alike.get((topology, free))
            if known is None:
                found = best_set(topology, free, count, within_island=within_island, budget=budget)
                known = alike[topology, free] = found.score if found else NO_SET
            worth[place] = known
        return worth
