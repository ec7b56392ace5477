"""The preempt verb's answer for reserved nodes, and where the victims that kube-scheduler offers are not enough.

Called by `allocations.extender.preempt`. kube-scheduler knows no devices: of a reserved node it offers the least
important pods, as many as there are `gpu.scheduling/pods` too few. Invariants: the pods answered are enough, none of
them can be spared, and each is less important than the pod; the pods offered are taken where they are just right, since
only kube-scheduler knows disruption budgets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from allocations import fleet
from allocations.engine.victims import EvictionPlan, EvictionQuery, best_eviction
from allocations.scheduling.preemption.candidates import holdings
from allocations.scheduling.preemption.node_check import NodeCheck, check_node
from allocations.scheduling.preemption.nominate import NODES_TRIED, PACE
from allocations.scheduling.preemption.reservations import (
    Preemptor,
    devices_of,
    end,
    live,
    of_others,
    reserve,
    victims_of,
)
from nodes.models import PreemptionReservation

FRESH = timedelta(seconds=10)
"""So long a pod waits for a better node than those offered: kube-scheduler may not have seen the reservation yet."""

Offered = Mapping[str, tuple[str, ...]]
"""Node → UIDs of the victims that kube-scheduler offers, the most important first."""


class VictimsAnswer(NamedTuple):
    """`victims`: what to answer for nodes checked by this package; `concerned`: those nodes, answered or not."""

    victims: Offered
    concerned: Collection[str]


def answer(preemptor: Preemptor | None, offered: Offered, *, enough: Collection[str], now: datetime) -> VictimsAnswer:
    """The answer for those of the offered nodes that need more than a yes or no.

    `preemptor` None: the pod is not counted, so it stays off reserved nodes. `enough`: offered nodes where the devices
    of the victims offered would do.
    """
    reserved = live(now)
    lowered = {one.node.name for one in reserved} & offered.keys()
    if preemptor is None:
        return VictimsAnswer({}, lowered)
    mine = next((one for one in reserved if one.pod_uid == preemptor.uid), None)
    plain = set(enough) - lowered
    elsewhere = mine if mine is not None and mine.node.name not in offered else None
    if elsewhere is not None and (now - elsewhere.made_at > FRESH or elsewhere.victims_sent):
        elsewhere = None
    if elsewhere is not None and _is_better(elsewhere, [offered[node] for node in plain]):
        return VictimsAnswer({}, offered.keys())
    others = of_others(reserved, preemptor)
    # Where victims offered by other names are not enough, others of the node go along; not as long as they are enough
    # somewhere.
    wanting = lowered | (set() if plain else offered.keys())
    if PACE.is_put_off(preemptor.uid):  # a node better than those reserved for others may be found yet
        wanting -= lowered - ({mine.node.name} if mine is not None else set())
    victims: dict[str, tuple[str, ...]] = {}
    for node in _in_order(preemptor, wanting, mine, others):
        surely = () if node in lowered else offered[node]
        check = check_node(preemptor, node, others=others, now=now, rather=offered[node], surely=surely)
        if check is None or check.eviction is None:
            if mine is not None and mine.node.name == node:
                end([mine], now, vain=True)
            continue
        if check.eviction.victims:
            if elsewhere is not None and node in lowered and not _costs_less(check.eviction, elsewhere):
                break  # kube-scheduler is about to offer that one
            chosen, victims[node] = _chosen(check, check.eviction, offered[node], lowered=node in lowered)
            reserve(preemptor, chosen, node=node, pods_there=check.pods, victims_sent=True, now=now)
        elif not check.leaving:
            # Nobody has to go; only the reservation for somebody less important, or for this very pod, keeps it off.
            end([one for one in reserved if one.node.name == node and one not in others], now)
        break
    if plain and not victims and mine is not None:
        end([mine], now)  # it goes elsewhere
    return VictimsAnswer(victims, wanting | lowered)


def _in_order(
    preemptor: Preemptor,
    nodes: Iterable[str],
    mine: PreemptionReservation | None,
    others: Sequence[PreemptionReservation],
) -> list[str]:
    """Nodes to try, the best first: the one reserved for the pod, else those where the least important would go."""
    snapshot = fleet.current().snapshot
    names = set(nodes)
    chosen = [mine.node.name] if mine is not None and mine.node.name in names else []
    question = EvictionQuery(snapshot, preemptor.request, own=preemptor.own, blocked=devices_of(others))
    rows = {snapshot.node_index[name] for name in names if name in snapshot.node_index and name not in chosen}
    could = holdings(snapshot, below=preemptor.priority, nodes=rows, but=victims_of(others))
    while len(chosen) < NODES_TRIED:
        best = best_eviction(question, could)
        if best is None:
            break
        chosen.append(snapshot.node_names[best.node])
        del could[best.node]
    return chosen


def _chosen(
    check: NodeCheck, eviction: EvictionPlan, offered: tuple[str, ...], *, lowered: bool
) -> tuple[EvictionPlan, tuple[str, ...]]:
    """(the eviction, UIDs to answer): the offered pods if exactly they are needed, else the engine's victims.

    Where kube-scheduler needs the offered pods for other resources than `gpu.scheduling/pods`, they are included too.
    """
    counted = lowered and set(offered) <= check.known
    just_right = check.eviction_of(eviction.node, offered) if counted else None
    if just_right is not None:
        eviction = just_right
    victims = tuple(one.pod_uid for one in eviction.victims)
    if counted:
        return eviction, victims
    evictable = {one.pod_uid for one in check.evictable}
    wanted = tuple(uid for uid in offered if uid in evictable or uid not in check.known)
    return eviction, wanted + tuple(uid for uid in victims if uid not in wanted)


def _costs_less(eviction: EvictionPlan, mine: PreemptionReservation) -> bool:
    """Whether less important, or fewer, pods would go than where a node was just reserved for the pod."""
    highest = _highest(mine.victims, _priorities())
    return highest is None or (eviction.cost[0], len(eviction.victims)) < (highest, len(mine.victims))


def _is_better(mine: PreemptionReservation, offered: Collection[Collection[str]]) -> bool:
    """Whether less important pods would go where a node was just reserved than on any of the nodes offered."""
    priorities = _priorities()
    highest = _highest(mine.victims, priorities)
    others = [_highest(uids, priorities) for uids in offered]
    return highest is not None and bool(others) and all(other is not None and highest < other for other in others)


def _priorities() -> dict[str, int]:
    """Pod UID → priority, of all who may be evicted."""
    snapshot = fleet.current().snapshot
    return {one.pod_uid: one.priority for held in holdings(snapshot, below=2**31).values() for one in held}


def _highest(uids: Collection[str], priorities: Mapping[str, int]) -> int | None:
    """The priority of the most important of these pods, None where the ledger does not know them all."""
    return max((priorities[uid] for uid in uids), default=None) if priorities.keys() >= set(uids) else None
