"""Workloads from pods: lone pods, complete gangs, and the pods that stand above a gang's `minMember`.

Called by what-if and by the queueing loop. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from allocations.engine.queueing.workloads import Age, Gang, Member, Running, Workload
from claims.queue_tree import QueueTree


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod that waits. `queue`: the one that it is in, which may not exist; `gang`: name of its GpuGang, or empty."""

    member: Member
    queue: str
    priority: int
    preemptible: bool = True
    gang: str = ""
    borrows_idle: bool = False
    barred: str = ""
    """Why it may not be in its queue."""


class Grouped(NamedTuple):
    """`problems`: why pods are in no workload, by pod."""

    workloads: list[Workload]
    problems: dict[str, str]


def group_into_workloads(
    tree: QueueTree,
    waiting: Sequence[WaitingPod],
    running: Sequence[Running],
    gangs: Mapping[str, Gang],
    *,
    gang_queues: Mapping[str, str],
    held_back: Mapping[str, str] | None = None,
    undone: Mapping[str, Age] | None = None,
) -> Grouped:
    """The workloads of these pods.

    `gang_queues`: the queue of each gang. `held_back`: why a gang is not looked at now; `undone`: the age of a gang
    that was undone.
    """
    found = Grouped([], {})
    members: defaultdict[str, list[WaitingPod]] = defaultdict(list)
    for pod in waiting:
        if pod.gang:
            members[pod.gang].append(pod)
        elif problem := pod.barred or queue_problem(tree, pod.queue):
            found.problems[pod.member.name] = problem
        else:
            found.workloads.append(_lone(pod, pod.queue))
    beside: defaultdict[str, list[Running]] = defaultdict(list)
    for one in running:
        if one.gang and not one.leaving:
            beside[one.gang].append(one)
    for name, pods in members.items():
        oldest = sorted(pods, key=attrgetter("member.age"))
        gang, there = gangs.get(name), len(beside[name]) + len(oldest)
        problem = next((pod.barred for pod in oldest if pod.barred), "")
        problem = problem or queue_problem(tree, gang_queues[name]) or (held_back or {}).get(name, "")
        if gang is None or there < gang.min_member or problem:
            problem = problem or incomplete_text(name, there, gang)
            found.problems.update((pod.member.name, problem) for pod in oldest)
        else:
            age = (undone or {}).get(name)
            found.workloads.extend(_of_gang(gang, gang_queues[name], oldest, beside[name], age))
    return found


def _of_gang(
    gang: Gang, queue: str, oldest: Sequence[WaitingPod], beside: Sequence[Running], age: Age | None
) -> list[Workload]:
    """The pods that the gang needs yet, which have the age and the highest priority of all its pods; those above."""
    missing = max(gang.min_member - len(beside), 0)
    needed, above = oldest[:missing], oldest[missing:]
    rows = tuple(one.row for one in beside)
    workloads = [
        msgspec.structs.replace(_lone(pod, queue), topology=gang.topology, beside=rows, above=gang.name)
        for pod in above
    ]
    if needed:
        workloads.insert(
            0,
            Workload(
                gang.name,
                queue,
                tuple(pod.member for pod in needed),
                max([*(pod.priority for pod in oldest), *(one.priority for one in beside)]),
                age or min([needed[0].member.age, *(one.age for one in beside)]),
                preemptible=all(pod.preemptible for pod in needed) and all(one.preemptible for one in beside),
                topology=gang.topology,
                beside=rows,
                borrows_idle=all(pod.borrows_idle for pod in needed),
            ),
        )
    return workloads


def split_gang(running: Iterable[Running], gang: Gang | None) -> tuple[list[Running], list[Running]]:
    """(the oldest `minMember` of a gang's running pods, which are one workload; the pods above). All where None."""
    oldest = sorted(running, key=attrgetter("age"))
    least = gang.min_member if gang is not None else len(oldest)
    return oldest[:least], oldest[least:]


def as_workloads(running: Sequence[Running], gangs: Mapping[str, Gang]) -> Sequence[Running]:
    """The running pods, of which none is preemptible whose workload has one that is not, as `_of_gang` admits them."""
    fixed = {one.gang for one in running if not one.preemptible} - {""}
    if not fixed:
        return running
    members: defaultdict[str, list[Running]] = defaultdict(list)
    for one in running:
        if one.gang in fixed:
            members[one.gang].append(one)
    workloads = [split_gang(pods, gangs.get(name))[0] for name, pods in members.items()]
    stay = {one.name for pods in workloads if not all(one.preemptible for one in pods) for one in pods}
    return [msgspec.structs.replace(one, preemptible=False) if one.name in stay else one for one in running]


def _lone(pod: WaitingPod, queue: str) -> Workload:
    member = pod.member
    return Workload(
        member.name,
        queue,
        (member,),
        pod.priority,
        member.age,
        preemptible=pod.preemptible,
        borrows_idle=pod.borrows_idle,
    )


def queue_problem(tree: QueueTree, queue: str) -> str:
    """Why the queue takes no pods, empty where it does."""
    if queue not in tree.queues:
        return f"queue {queue} does not exist"
    return "" if tree.is_leaf(queue) else f"queue {queue} has queues below it; only those take pods"


def incomplete_text(name: str, there: int, gang: Gang | None) -> str:
    """Why a gang waits that is not complete."""
    short = name.rpartition("/")[2]
    if gang is None:
        return f"GpuGang {short} does not exist"
    return f"gang {short}: {there} of {gang.min_member} pods are there"
