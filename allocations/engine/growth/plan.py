"""The plan: who has room on the fleet or on nodes that are coming, and which new nodes serve the others.

Pools are taken by weight; of equal ones the one whose new nodes have fewer GPUs in all, then by name. Invariants: a
new node is opened only for pods that no node there, coming or opened holds; a gang is served whole or not at all; no
pool makes more nodes than it may; the same input gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from allocations.engine.growth.fleet_room import FleetRoom
from allocations.engine.growth.packing import Bin, Item, Packer, Packing
from allocations.engine.growth.records import ComingNode, Demand, Growth, GrowthInput, GrowthNode, Need
from allocations.engine.growth.shapes import EMPTY, Shape, packed
from allocations.engine.reasons import summary_text

if TYPE_CHECKING:
    from allocations.engine.queueing.workloads import Member, Topology
    from claims.dialects.request import DeviceRequest

BY_ITSELF: Final = "Karpenter makes a node for it without a trigger pod"
ROLLBACKS: Final = 8
"""Gangs without room that are taken out of the plan one by one; then all others at once."""


def grow(inputs: GrowthInput) -> Growth:
    """The plan."""
    return _Planner(inputs).run()


class _Course(NamedTuple):
    """One try: the nodes, who is where, and who has no room."""

    bins: list[Bin]
    seats: dict[str, int]
    on_fleet: dict[str, str]
    left: dict[str, str]
    """Pod → its workload."""


class _Planner:
    def __init__(self, inputs: GrowthInput) -> None:
        self.inputs = inputs
        self.pools = inputs.pools
        self.shapes = [Shape(pool.node) for pool in inputs.pools]
        self.packer = Packer(self.shapes)
        places = range(len(self.pools))
        self.order = sorted(places, key=lambda place: (-self.pools[place].weight, self.pools[place].name))
        self.hardness: dict[DeviceRequest, tuple[int, ...]] = {}
        self.allowed: dict[str, tuple[int, ...]] = {}
        for demand in inputs.demands:
            for need in demand.needs:
                self.allowed[need.member.name] = self._allowed(need)
        self.no_value: dict[str, str] = {}
        """Pod → why its gang's topology leaves no pool."""
        self.demands = sorted(inputs.demands, key=self._rank)

    def run(self) -> Growth:
        """Try, take a gang that has no room out of the plan, and try again."""
        without: set[str] = set()
        while True:
            course = self._course(without)
            halved = self._halved(course, without)
            if not halved:
                return self._answer(course)
            without |= set(halved[-1:] if len(without) < ROLLBACKS else halved)

    def _course(self, without: set[str]) -> _Course:
        room = FleetRoom(self.inputs.snapshot, self.inputs.labels)
        course = _Course([(one.pool, EMPTY) for one in self.inputs.coming], {}, {}, {})
        opened = [0] * len(self.pools)
        alone: list[Item] = []
        by_themselves: list[Item] = []
        for demand in self.demands:
            if demand.name in without:
                course.left.update((need.member.name, demand.name) for need in demand.needs)
            elif not demand.above:
                own = by_themselves if demand.needs[0].by_itself else alone
                own += self._beyond_fleet(demand, room, course, opened)
        self._on_coming(by_themselves, course, ours=False)
        self._pack(alone, course, opened)
        short = set(course.left.values())
        above: list[Item] = []
        for demand in self.demands:
            if demand.above in short:
                course.left.update((need.member.name, demand.above) for need in demand.needs)
            elif demand.above:
                above += self._beyond_fleet(demand, room, course, opened)
        self._pack(above, course, opened)
        self._on_coming([one for one in by_themselves if one.pod in course.left], course, ours=True)
        return course

    def _beyond_fleet(self, demand: Demand, room: FleetRoom, course: _Course, opened: list[int]) -> list[Item]:
        """The pods that the fleet has no room for, restricted to the pools that a gang's topology leaves."""
        found = room.take(demand)
        course.on_fleet.update(found)
        items = [self._item(demand, need) for need in demand.needs if need.member.name not in found]
        if not items or demand.topology is None:
            return items
        return self._near(demand, demand.topology, items, room, course, opened)

    def _near(
        self,
        demand: Demand,
        topology: Topology,
        items: list[Item],
        room: FleetRoom,
        course: _Course,
        opened: list[int],
    ) -> list[Item]:
        """The items where one value of the label, which a pool fixes, holds them all; the fewest new GPUs first."""
        labels = [node.get(topology.label, "") for node in self.inputs.labels]
        values = {self.pools[place].labels.get(topology.label, "") for item in items for place in item.pools} - {""}
        if beside := {labels[row] for row in demand.beside}:
            values &= beside
        best: tuple[tuple[int, int, str], list[Item], list[Member]] | None = None
        for value in sorted(values):
            members = [_within(need.member, labels, value) for need in demand.needs]
            seated = room.copy().some(members)
            near = [self._only(item, topology.label, value) for item in items if item.pod not in seated]
            trial, counts = _Course(list(course.bins), {}, {}, {}), list(opened)
            self._pack(near, trial, counts)
            gpus = sum(count * shape.gpus for count, shape in zip(counts, self.shapes, strict=True))
            rank = (len(trial.left), gpus, value)
            best = (rank, near, members) if best is None or rank < best[0] else best
        if best is not None and (topology.required or not best[0][0]):
            course.on_fleet.update(room.some(best[2]))
            return best[1]
        if not topology.required:
            return items
        why = f"no pool fixes the label {topology.label}"
        self.no_value.update(dict.fromkeys((item.pod for item in items), why))
        return [item._replace(pools=()) for item in items]

    def _only(self, item: Item, label: str, value: str) -> Item:
        return item._replace(pools=tuple(one for one in item.pools if self.pools[one].labels.get(label, "") == value))

    def _pack(self, items: Sequence[Item], course: _Course, opened: list[int]) -> None:
        """Pack these items, hardest first, on the nodes there and on new ones."""
        waiting = sorted(items, key=self._item_rank)
        for weight in dict.fromkeys(self.pools[place].weight for place in self.order):
            level = [place for place in self.order if self.pools[place].weight == weight]
            groups: dict[tuple[int, ...], list[Item]] = {}
            for item in waiting:
                groups.setdefault(tuple(place for place in level if place in item.pools), []).append(item)
            waiting = []
            for pools in sorted(groups, key=len):  # pods of few choices first: the others fill their nodes
                waiting += self._pack_group(groups[pools], list(pools), course, opened)
            waiting.sort(key=self._item_rank)
        course.left.update((item.pod, item.demand) for item in waiting)

    def _pack_group(self, items: list[Item], pools: list[int], course: _Course, opened: list[int]) -> list[Item]:
        """Pack pods that the same pools of a weight may serve; who has no room."""
        while items and pools:
            best: tuple[tuple[int, int, int], int, Packing] | None = None
            for at, place in enumerate(pools):
                found = self.packer.pack(course.bins, items, place, self._left_of(place, opened))
                new = len(found.bins) - len(course.bins)
                rank = (len(found.left), new * self.shapes[place].gpus, at)
                best = (rank, place, found) if best is None or rank < best[0] else best
            if best is None:
                break
            _, place, found = best
            opened[place] += len(found.bins) - len(course.bins)
            self._note(found, course)
            items = list(found.left)
            pools.remove(place)
        if items:
            found = self.packer.pack(course.bins, items, None, 0)
            self._note(found, course)
            items = list(found.left)
        return items

    def _on_coming(self, items: Sequence[Item], course: _Course, *, ours: bool) -> None:
        """Pods for which Karpenter makes nodes by itself, on nodes that are coming: on ours only what others leave."""
        places = [at for at, one in enumerate(self.inputs.coming) if ours or not one.ours]
        found = self.packer.pack([course.bins[at] for at in places], items, None, 0)
        for at, filled in zip(places, found.bins, strict=True):
            course.bins[at] = filled
        for item, at in found.seats.items():
            course.seats[item.pod] = places[at]
            course.left.pop(item.pod, None)
        course.left.update((item.pod, item.demand) for item in found.left)

    def _note(self, found: Packing, course: _Course) -> None:
        course.bins[:] = found.bins
        course.seats.update((item.pod, place) for item, place in found.seats.items())

    def _halved(self, course: _Course, without: set[str]) -> list[str]:
        """Gangs of which only some pods have room."""
        short = set(course.left.values()) - without
        gangs = [one for one in self.demands if len(one.needs) > 1 and one.name in short]
        return [one.name for one in gangs if any(need.member.name not in course.left for need in one.needs)]

    def _answer(self, course: _Course) -> Growth:
        pods: list[list[str]] = [[] for _ in course.bins]
        place_of = {need.member.name: need.member.age for one in self.inputs.demands for need in one.needs}
        for pod, place in course.seats.items():
            pods[place].append(pod)
        nodes = []
        for at, (pool, state) in enumerate(course.bins):
            coming: ComingNode | None = self.inputs.coming[at] if at < len(self.inputs.coming) else None
            held = tuple(sorted(pods[at], key=lambda pod: (place_of[pod], pod)))
            nodes.append(GrowthNode(pool, coming.name if coming else "", held, self.shapes[pool].used(state)))
        there = len(self.inputs.coming)
        nodes[there:] = sorted(nodes[there:], key=lambda node: node.pool)  # stable: ordinals by opening
        pool_of = {pod: course.bins[place][0] for pod, place in course.seats.items()}
        on_fleet = dict(course.on_fleet)
        for demand in self.inputs.demands:
            served = [pool_of[need.member.name] for need in demand.needs if need.member.name in pool_of]
            for need in demand.needs:
                if served and on_fleet.pop(need.member.name, None) is not None:
                    pool_of[need.member.name] = min(served)
        return Growth(tuple(nodes), pool_of, on_fleet, self._reasons(course))

    def _reasons(self, course: _Course) -> dict[str, str]:
        needs = {need.member.name: need for one in self.inputs.demands for need in one.needs}
        gangs = {one.name: one for one in self.inputs.demands if len(one.needs) > 1}
        found = {}
        for pod, demand in course.left.items():
            gang = gangs.get(demand)
            own = self._why_not(needs[pod]) or self.no_value.get(pod, "")
            if gang is not None and not own:
                others = (self._why_not(need) or self.no_value.get(need.member.name, "") for need in gang.needs)
                own = next((why for why in others if why), "")
            if not own and needs[pod].by_itself:
                own = BY_ITSELF
            found[pod] = own or self._at_most(self.allowed[pod])
        return found

    def _why_not(self, need: Need) -> str:
        """Why no empty node of a pool can hold the pod; empty where one can."""
        if not self.pools:
            return "there are no pools"
        if self.allowed[need.member.name]:
            return ""
        request = packed(need.member.request)
        whys = [need.refused.get(at) or shape.refusal(request) for at, shape in enumerate(self.shapes)]
        if len(whys) == 1:
            return f"no pool can hold it: pool {self.pools[0].name}: {whys[0]}"
        counted: dict[str, int] = {}
        for why in whys:
            counted[why] = counted.get(why, 0) + 1
        return f"no pool can hold it: {summary_text(len(whys), counted.items()).replace(' nodes:', ' pools:', 1)}"

    def _at_most(self, pools: Iterable[int]) -> str:
        names = sorted(self.pools[place].name for place in pools)
        return f"pool{'s' if len(names) > 1 else ''} {', '.join(names)} may make no more nodes"

    def _left_of(self, place: int, opened: Sequence[int]) -> int | None:
        most = self.pools[place].most
        return None if most is None else max(most - opened[place], 0)

    def _allowed(self, need: Need) -> tuple[int, ...]:
        request = packed(need.member.request)
        return tuple(
            at for at, shape in enumerate(self.shapes) if at not in need.refused and not shape.refusal(request)
        )

    def _item(self, demand: Demand, need: Need) -> Item:
        name = need.member.name
        return Item(name, packed(need.member.request), self.allowed[name], demand.name)

    def _rank(self, demand: Demand) -> tuple[object, ...]:
        """Hardest first: by all that the workload asks for, then by age."""
        ranks = [self._hardness(packed(need.member.request)) for need in demand.needs]
        total = tuple(map(sum, zip(*ranks, strict=True)))
        return total, demand.needs[0].member.age, demand.name

    def _item_rank(self, item: Item) -> tuple[int, ...]:
        return self._hardness(item.request)

    def _hardness(self, request: DeviceRequest) -> tuple[int, ...]:
        """The smaller, the harder: by GPUs (hundredths of the smallest node's), by strictness, by other devices."""
        if request not in self.hardness:
            sizes = []
            for shape in self.shapes:
                asked, size = shape.demand(request), shape.capacity
                if size[0]:
                    sizes.append(max(asked[0], asked[1] * size[0] // max(size[1], 1)))
            devices = sum(ask.count for ask in request.asks)
            strict = request.policy_strict or (request.joint is not None and request.joint.required)
            self.hardness[request] = (-max(sizes, default=0), -int(strict), -devices)
        return self.hardness[request]


def _within(member: Member, labels: Sequence[str], value: str) -> Member:
    """The pod on nodes with this value alone."""
    rows = range(len(labels)) if member.rows is None else member.rows
    return msgspec.structs.replace(member, rows=tuple(row for row in rows if labels[row] == value))
