"""What the preempt verb answers for nodes that make way, and where the victims that kube-scheduler offers are not enough.

Called by `allocations.extender.preempt`. kube-scheduler knows no devices: of a node that makes way it offers the least important pods, as many
as there are `gpu.scheduling/pods` too few. Kept true: the pods answered are enough, none of them can be spared, and each is less important
than the pod; those offered are taken where they are just right, since only kube-scheduler knows disruption budgets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from allocations import fleet
from allocations.engine.plan import Amounts
from allocations.engine.victims import Question, Way, best_way
from allocations.making_way.beginning import PACE
from allocations.making_way.closely import Look, look_closely
from allocations.making_way.holders import holdings
from allocations.making_way.promises import (
    Promise,
    devices_of,
    end,
    live,
    of_others,
    promise,
    victims_of,
)
from claims.dialects.request import DeviceRequest
from kube.objects import Pod

FRESH = timedelta(seconds=10)
"""So long a pod waits for a better node than those offered, kube-scheduler not having seen yet that it makes way."""
NODES_TRIED = 3

Offered = Mapping[str, tuple[str, ...]]
"""Node → UIDs of the victims that kube-scheduler offers, the most important first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`victims`: what to answer for nodes that this package has looked at; `concerned`: those nodes, answered or not."""

    victims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    concerned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod that asks for devices and may evict others; `own`: what it holds itself."""

    pod: Pod
    priority: int
    request: DeviceRequest
    own: dict[int, Amounts] | None

    @property
    def uid(self) -> str:
        """The pod's."""
        return self.pod.metadata.uid


def answer(preemptor: Preemptor | None, offered: Offered, *, enough: Collection[str], now: datetime) -> Answer:
    """The answer for those of the offered nodes that need more than a yes or no.

    `preemptor` None: the pod is not counted, so it takes no part in this and stays off nodes that make way. `enough`: offered nodes where
    the devices of the victims offered would do.
    """
    promised = live(now)
    lowered = {one.node for one in promised} & offered.keys()
    if preemptor is None:
        return Answer(concerned=frozenset(lowered))
    mine = next((one for one in promised if one.pod_uid == preemptor.uid), None)
    plain = set(enough) - lowered
    fresh = mine if mine is not None and now - mine.made_at <= FRESH and not mine.told else None
    if fresh is not None and fresh.node not in offered and _is_better(fresh, [offered[node] for node in plain]):
        return Answer(concerned=frozenset(offered))
    others = of_others(promised, pod_uid=preemptor.uid, priority=preemptor.priority)
    # Where victims offered by other names are not enough, others of the node go along; not as long as they are enough somewhere.
    wanting = lowered | (set() if plain else offered.keys())
    if PACE.is_put_off(
        preemptor.uid
    ):  # there may be a better node than those that make way for others; it is woken to look
        wanting -= lowered - ({mine.node} if mine is not None else set())
    victims: dict[str, tuple[str, ...]] = {}
    for node in _in_order(preemptor, wanting, mine, others):
        look = look_closely(
            node=node,
            request=preemptor.request,
            own=preemptor.own,
            priority=preemptor.priority,
            others=others,
            now=now,
            rather=offered[node],
            surely=() if node in lowered else offered[node],
        )
        if look is None or look.way is None:
            if mine is not None and mine.node == node:
                end([mine], now, vain=True)
            continue
        if look.way.victims:
            if fresh is not None and fresh.node not in offered and node in lowered and not _costs_less(look.way, fresh):
                break  # kube-scheduler is about to offer that one
            way, victims[node] = _chosen(look, look.way, offered[node], lowered=node in lowered)
            promise(
                pod=preemptor.pod,
                priority=preemptor.priority,
                way=way,
                node=node,
                pods_there=look.pods,
                told=True,
                now=now,
            )
        elif not look.leaving:
            # Nobody has to go; only that the node makes way for somebody less important, or for this very pod, keeps it off.
            end([one for one in promised if one.node == node and one not in others], now)
        break
    if plain and not victims and mine is not None:
        end([mine], now)  # it goes elsewhere
    return Answer(victims, frozenset(wanting | lowered))


def _in_order(preemptor: Preemptor, nodes: Iterable[str], mine: Promise | None, others: list[Promise]) -> list[str]:
    """Nodes to try, the best first: the one that makes way for the pod, else those where the least important would go."""
    picture, _ = fleet.current()
    wanted = set(nodes)
    chosen = [mine.node] if mine is not None and mine.node in wanted else []
    question = Question(picture, preemptor.request, own=preemptor.own, blocked=devices_of(others))
    rows = {picture.node_index[name] for name in wanted if name in picture.node_index and name not in chosen}
    could = holdings(picture, below=preemptor.priority, nodes=rows, but=victims_of(others))
    while len(chosen) < NODES_TRIED:
        way = best_way(question, could)
        if way is None:
            break
        chosen.append(picture.node_names[way.node])
        del could[way.node]
    return chosen


def _chosen(look: Look, way: Way, offered: tuple[str, ...], *, lowered: bool) -> tuple[Way, tuple[str, ...]]:
    """(the way to go, UIDs to answer): by those offered where they are just right, else the engine's.

    With all that were offered, where kube-scheduler wants them for more than their number.
    """
    counted = lowered and set(offered) <= look.known
    just_right = look.along(way.node, offered) if counted else None
    if just_right is not None:
        return just_right, tuple(one.pod_uid for one in just_right.victims)
    going = tuple(one.pod_uid for one in way.victims)
    if counted:
        return way, going
    able = {one.pod_uid for one in look.able}
    wanted = tuple(uid for uid in offered if uid in able or uid not in look.known)
    return way, wanted + tuple(uid for uid in going if uid not in wanted)


def _costs_less(way: Way, mine: Promise) -> bool:
    """Whether less important, or fewer, pods would go this way than where a node has just begun to make way for the pod."""
    own = _ranks_highest(mine.victims)
    return own is None or (way.cost[0], len(way.victims)) < (own, len(mine.victims))


def _ranks_highest(uids: Collection[str]) -> int | None:
    """The priority of the most important of these pods, None where the ledger does not know them all."""
    picture, _ = fleet.current()
    ranks = {one.pod_uid: one.priority for some in holdings(picture, below=2**31).values() for one in some}
    return max((ranks[uid] for uid in uids), default=None) if all(uid in ranks for uid in uids) else None


def _is_better(mine: Promise, offered: Collection[Collection[str]]) -> bool:
    """Whether less important pods would go where a node has just begun to make way than on any of the nodes offered."""
    own = _ranks_highest(mine.victims)
    ranks = [_ranks_highest(uids) for uids in offered]
    return own is not None and bool(ranks) and all(rank is not None and own < rank for rank in ranks)
