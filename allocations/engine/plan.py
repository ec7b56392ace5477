"""The decision: which node and which devices serve a request.

Called by filter, prioritize, bind, preempt, REST claims, explain and the what-if page. Pure: the same snapshot and
request give the same Decision, whatever order things came in. Invariants: every device granted fits in the snapshot
given; a node that could serve is never refused.

Everything is computed for all nodes at once; only nodes tied for best are compared by their best sets of GPUs, and only
the one chosen is searched device by device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.budget import Budget
from allocations.engine.choice import choose_devices, summary_of
from allocations.engine.decision import Decision, PlanQuery, Verdicts
from allocations.engine.multi_container import MultiContainerNeeds
from allocations.engine.needs import Need
from allocations.engine.patch import with_freed
from allocations.engine.pcie_affinity import PcieAffinityNeeds
from allocations.engine.reasons import kubelet_text, summary_text, verdicts
from allocations.engine.set_scores import NO_SET, best_scores
from allocations.engine.sets import best_set
from allocations.engine.snapshot import DEVICE_PLUGIN
from allocations.engine.subsets import mask_of
from allocations.engine.topology import EXACT_UP_TO
from claims.dialects.request import Policy
from kube.device_types import GPU, is_mig

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from allocations.engine.amounts import Amounts, Held
    from allocations.engine.snapshot import Snapshot
    from allocations.engine.topology import Topology
    from claims.dialects.request import DeviceRequest

NodeKey = Callable[[NDArray[np.intp]], NDArray[np.generic]]
"""[a] numbers to rank a nodes by, from their rows; higher is better."""
NodeRows = Sequence[int] | NDArray[np.integer] | None
"""Node rows of a snapshot; None: every node."""

EXPLAINED_UP_TO: Final = 256
"""Candidates up to which a success has the reasons of other nodes; past it they are worked out when asked for."""
_ISLAND_FIRST = 1 << 52
"""Added by `contiguous` to the score of a set that one island holds; above any score."""


def plan(
    snapshot: Snapshot,
    request: DeviceRequest,
    *,
    candidates: NodeRows | Callable[[], NodeRows] = None,
    offered: Container[str] | None = None,
    own: Mapping[int, Amounts] | None = None,
    freed: Iterable[Held] = (),
    last: Collection[int] = (),
    blocked: Collection[int] = (),
    verdicts_up_to: int | None = None,
) -> Decision:
    """Decide one request.

    `candidates`: what to choose from. `offered`: their names, where they are most of the nodes: the best node of all is
    looked for among them first, so `candidates` is called only if it is not there; such a success has no verdicts.
    `own`: device id → (core percent, bytes) of the pod's own live hold, counted as free; `freed`: what pods that would
    be evicted hold, one entry for each share of a device. `last`: node rows that rank after all others. `blocked`:
    device ids counted as taken. `verdicts_up_to`: a success over more candidates comes without verdicts, which cost
    about as much as deciding; None: always with them.
    """
    own_held = [(device, core, memory) for device, (core, memory) in (own or {}).items()]
    query = PlanQuery(request, (*own_held, *freed), frozenset(blocked), tuple(sorted(last)))
    # several asks for one type may take a search of 80 ms, which is not begun twice
    if offered is not None and not request.several:
        best = _Planner(snapshot, query, snapshot.index.every_node).decide_among(offered)
        if best is not None:
            return best
    rows = candidates() if callable(candidates) else candidates
    nodes = snapshot.index.every_node if rows is None else _ascending(rows, len(snapshot.node_names))
    return _Planner(snapshot, query._replace(every_node=rows is None), nodes).decide(verdicts_up_to)


def verdicts_of(decision: Decision, snapshot: Snapshot) -> Verdicts:
    """Why candidates cannot serve; `snapshot`: the one that was decided upon."""
    return _again(decision, snapshot).verdicts() if decision.verdicts is None else decision.verdicts


def feasible(decision: Decision, snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """(node name, score) of every candidate that could serve, in node order.

    Scores are above 0, up to 1 for the best, in the order in which the engine chooses. `snapshot`: the one that was
    decided upon.
    """
    scores = _again(decision, snapshot).scores()
    for place in np.flatnonzero(scores).tolist():
        yield snapshot.node_names[decision.candidates[place]], float(scores[place])


def serving(decision: Decision, snapshot: Snapshot) -> NDArray[np.bool_]:
    """[n] the candidates that could serve; `snapshot`: the one that was decided upon."""
    return _again(decision, snapshot).serving()


def _again(decision: Decision, snapshot: Snapshot) -> _Planner:
    """The planner of a decision, which decides again: verdicts state how far its bounded searches went."""
    planner = _Planner(snapshot, decision.query, decision.candidates)
    planner.decide(0)
    return planner


def _ascending(rows: Sequence[int] | NDArray[np.integer], nodes: int) -> NDArray[np.int32]:
    """The distinct rows in order (twenty times as fast as `np.unique` for thousands)."""
    chosen = np.zeros(nodes, dtype=np.bool_)
    chosen[np.asarray(rows, dtype=np.int32)] = True
    return np.flatnonzero(chosen).astype(np.int32)


class _Planner:
    """Decides one query over one snapshot."""

    def __init__(self, snapshot: Snapshot, query: PlanQuery, candidates: NDArray[np.int32]) -> None:
        self.snapshot = snapshot = with_freed(snapshot, query.freed, query.blocked)
        self.query = query
        self.request = request = query.request
        self.candidates = candidates
        self.needs = [Need(snapshot, ask) for ask in request.asks]
        self.budget = Budget()
        self.affinity = PcieAffinityNeeds(snapshot, request.joint, self.needs, self.budget) if request.joint else None
        self.containers = MultiContainerNeeds(snapshot, request, self.needs, self.budget) if request.several else None
        self.gpus = next((need for need in self.needs if need.ask.type == GPU), None)
        contiguous = request.policy is Policy.CONTIGUOUS
        self.strict = contiguous and request.policy_strict and self.gpus is not None
        self.kept_out = np.zeros(len(snapshot.node_names), dtype=np.bool_)
        """[n] nodes whose kubelet chooses devices, where neither it nor a reservation pod can serve the request."""
        if not (request.for_kubelet or request.reservable):
            self.kept_out = np.equal(snapshot.node_mode, DEVICE_PLUGIN)
        self.feasible = self._feasible()

    def decide(self, verdicts_up_to: int | None) -> Decision:
        """The Decision; `verdicts_up_to`: see `plan`."""
        node = self._choose()
        if node is None:
            verdicts = self.verdicts()
            summary = summary_text(len(self.candidates), verdicts.counts().items())
            return Decision(None, (), self.candidates, summary, self.query, verdicts)
        explained = verdicts_up_to is None or len(self.candidates) <= verdicts_up_to
        return self._success(node, explained=explained)

    def decide_among(self, names: Container[str]) -> Decision | None:
        """The Decision, without verdicts, if the best of the candidates is one of these nodes; else None."""
        node = self._choose()
        if node is None or self.snapshot.node_names[node] not in names:
            return None
        return self._success(node, explained=False)

    def _success(self, node: int, *, explained: bool) -> Decision:
        chosen = choose_devices(
            self.snapshot,
            self.request,
            self.needs,
            node,
            budget=self.budget,
            affinity=self.affinity,
            containers=self.containers,
        )
        name = self.snapshot.node_names[node]
        summary = summary_of(self.snapshot, name, node, chosen.grants)
        if any(is_mig(need.ask.type) for need in self.needs):
            chosen = chosen.for_the_ledger()
        return Decision(
            name,
            chosen.grants,
            self.candidates,
            summary,
            self.query,
            self.verdicts() if explained else None,
            minors=chosen.minors,
            by_kubelet=self.request.for_kubelet and bool(self.snapshot.node_mode[node] == DEVICE_PLUGIN),
        )

    def verdicts(self) -> Verdicts:
        """See `verdicts_of`."""
        pending = np.zeros(len(self.snapshot.node_names), dtype=np.bool_)
        pending[self.candidates] = True
        code, reasons = verdicts(
            self.snapshot,
            self.needs,
            pending & ~self.serving(),
            kept_out=self.kept_out,
            kept_out_text=kubelet_text(self.request),
            strict=self.strict,
            affinity=self.affinity,
            containers=self.containers,
        )
        return Verdicts(self.candidates, self.snapshot.node_names, code[self.candidates], reasons)

    def scores(self) -> NDArray[np.float64]:
        """[c] the rank of each candidate that can serve, divided by their number: 1 for the best; 0 for the others."""
        score = np.zeros(len(self.snapshot.node_names), dtype=np.float64)
        serving = np.flatnonzero(self.serving())
        score[self._ranked(serving)] = np.arange(1, len(serving) + 1) / max(len(serving), 1)
        return score[self.candidates]

    def _ranked(self, nodes: NDArray[np.intp]) -> NDArray[np.intp]:
        """The nodes, the best last."""
        keys = [key(nodes) for key in self._keys()]
        return nodes[np.lexsort((-nodes, *reversed(keys)))]

    def serving(self) -> NDArray[np.bool_]:
        """[n] candidates that can serve, each checked by itself where several asks are for one type."""
        return self.feasible if self.containers is None else self.containers.able(self.feasible)

    def _feasible(self) -> NDArray[np.bool_]:
        """[n] candidates that can serve; where several asks are for one type, each of them alone."""
        able = self.snapshot.index.problem_free & ~self.kept_out
        for need in self.needs:
            able = able & need.enough
        if self.strict and self.gpus is not None and self.gpus.ask.count > 1:
            able = able & (self.gpus.view.most_in_group(self.gpus.fits) >= self.gpus.ask.count)
        if self.affinity is not None and self.affinity.required:
            able = able & (self.affinity.fewest > 0)
        if self.query.every_node:
            return able
        chosen = np.zeros(len(able), dtype=np.bool_)
        chosen[self.candidates] = True
        return able & chosen

    def _choose(self) -> int | None:
        nodes = np.flatnonzero(self.feasible)
        if self.containers is not None:
            best_first = reversed(self._ranked(nodes).tolist())
            return next((node for node in best_first if self.containers.serves(node)), None)
        for key in self._keys():
            if len(nodes) <= 1:
                break
            worth = key(nodes)
            nodes = nodes[worth == worth.max()]
        return int(nodes[0]) if len(nodes) else None

    def _keys(self) -> list[NodeKey]:
        """What ranks nodes, the most important first."""
        keys: list[NodeKey] = []
        if self.query.last:
            keys.append(lambda nodes: ~np.isin(nodes, self.query.last))
        if self.affinity is not None:
            keys.append(self.affinity.worth)
        sign = -1.0 if self.request.policy is Policy.SPREAD else 1.0
        usage = self.snapshot.usage_of(self.needs[0].code if self.needs else -1)
        fuller: list[NodeKey] = [
            lambda nodes: sign * usage.memory_fraction[nodes],
            lambda nodes: sign * usage.core_fraction[nodes],
        ]
        gpus = self.gpus
        if gpus is None or gpus.ask.count == 1 or self.containers is not None:
            return keys + fuller
        if self.request.policy is Policy.CONTIGUOUS:
            return [*keys, lambda nodes: self._contiguous(gpus, nodes), *fuller]
        if not gpus.ask.whole:
            return keys + fuller
        return [*keys, *fuller, lambda nodes: self._set_scores(gpus, nodes, within_island=False)]

    def _contiguous(self, gpus: Need, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """[a] scores of the best sets, every set that one island holds above all others."""
        if not gpus.ask.whole:
            return np.where(gpus.view.most_in_group(gpus.fits)[nodes] >= gpus.ask.count, _ISLAND_FIRST, 0)
        within = self._set_scores(gpus, nodes, within_island=True)
        without = within == NO_SET
        worth = within + _ISLAND_FIRST
        if without.any():
            worth[without] = self._set_scores(gpus, nodes[without], within_island=False)
        return worth

    def _set_scores(self, gpus: Need, nodes: NDArray[np.intp], *, within_island: bool) -> NDArray[np.int64]:
        """[a] scores of the best sets, NO_SET where there is none."""
        scores = np.full(len(nodes), NO_SET, dtype=np.int64)
        count = gpus.ask.count
        exact = gpus.view.count[nodes] <= EXACT_UP_TO
        rows, cached = nodes[exact], self.snapshot.index.sets
        if gpus.at_one_numa:
            for own in gpus.apart_by_numa(gpus.fits):
                masks, wiring = gpus.view.per_node(own * gpus.view.bit)[rows], cached.topology_of[rows]
                found = best_scores(cached.topologies, wiring, masks, count, within_island=within_island)
                scores[exact] = np.maximum(scores[exact], found)
        else:
            scores[exact] = cached.scores(rows, gpus.masks[rows], count, within_island=within_island)
        budget = Budget()  # a new one each time, so that nodes rank alike whatever was searched before
        known: dict[tuple[Topology, *tuple[int, ...]], int] = {}
        for place in np.flatnonzero(~exact).tolist():
            node = int(nodes[place])
            topology, start = self.snapshot.node_topology[node], int(self.snapshot.node_start[node])
            free = [mask_of(row - start for row in rows) for rows in gpus.numas(gpus.rows(node))]
            if (topology, *free) not in known:
                sets = [best_set(topology, one, count, within_island=within_island, budget=budget) for one in free]
                known[topology, *free] = max((found.score for found in sets if found), default=NO_SET)
            scores[place] = known[topology, *free]
        return scores
