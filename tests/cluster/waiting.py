"""What tests wait for, in words: predicates over an Observer of pods."""

from collections.abc import Callable, Iterable

from kube.keys import ALLOCATED
from tests.cluster.controlplane.api import Json, Observer

Seen = Callable[[Observer], object]


def pods_of(seen: Observer) -> dict[str, Json]:
    """The pods that are there, by name."""
    return {one["metadata"]["name"]: one for one in seen.now.values()}


def is_bound(pod: Json | None) -> bool:
    """Whether it has a node."""
    return pod is not None and bool(pod["spec"].get("nodeName"))


def bound(*names: str) -> Seen:
    """Each of these pods has a node."""
    return lambda seen: all(is_bound(pods_of(seen).get(name)) for name in names)


def count_bound(count: int) -> Seen:
    """So many pods have a node."""
    return lambda seen: sum(map(is_bound, seen.now.values())) >= count


def minors(pod: Json) -> list[int]:
    """The devices that a pod was given."""
    told = pod["metadata"]["annotations"][ALLOCATED]
    return [int(minor) for minor in told.partition(":")[2].split(",")]


def said(pod: Json) -> str:
    """Why it is not scheduled: reason and message of PodScheduled; empty where nothing is said or it is."""
    for one in pod.get("status", {}).get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return f"{one.get('reason', '')}: {one.get('message', '')}"
    return ""


def unschedulable(*names: str, saying: str = "") -> Seen:
    """Each of these pods is Unschedulable, for a reason that contains this."""

    def told(seen: Observer) -> bool:
        there = pods_of(seen)
        texts = [said(there[name]) if name in there else "" for name in names]
        return all(text.startswith("Unschedulable: ") and saying in text for text in texts)

    return told


def gone(names: Iterable[str]) -> Seen:
    """None of these pods is there."""
    wanted = set(names)
    return lambda seen: not wanted & set(pods_of(seen))
