"""`python -m tests.bench.cluster.growth`: from no GPU node to pods that run, by the real Karpenter, again and again.

Sixteen halves of a GPU appear at once, where there is no node; their node's inventory is told as soon as it is ready.
Beside them the floor of the same run: one pod that needs a node for its CPUs, served by Karpenter and kube-scheduler
alone.
Moments are those at which a watch heard of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from tests.bench.cluster.printing import markdown
from tests.bench.machine import machine_told
from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.karpenter import NODE_CLAIMS, NODE_POOLS, Karpenter
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually, running_stack
from tests.cluster.growing import HALF, TRIGGERS, inventories, served_definitions

NAMESPACE = "growth"
PODS = 16
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
LONGEST = 120.0
AIMS = {"created → trigger pod": 3.0, "inventory → pod bound": 2.0, "created → all bound": 15.0}


def main() -> int:
    """Command line; 0 when every round could be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    machine = machine_told()
    with running_stack() as stack:
        karpenter = Karpenter(stack.plane)
        karpenter.default_scheduler().start()
        karpenter.start()
        eventually(lambda: served_definitions(karpenter), seconds=60, what="Karpenter's definitions served")
        stack.plane.namespace(NAMESPACE)
        half = claim("half", NAMESPACE, devices=HALF)
        stack.api.create(f"/apis/gpu.scheduling/v1/namespaces/{NAMESPACE}/gpuclaims", half)
        found: dict[str, list[float]] = {name: [] for name in (*AIMS, "floor: created → bound")}
        for number in range(rounds):
            _grow(stack, karpenter, number, found)
            _floor(stack, karpenter, number, found)
    print(machine)
    print(markdown(_table(found)))
    return 0


def _grow(stack: Stack, karpenter: Karpenter, number: int, found: dict[str, list[float]]) -> None:
    karpenter.pool("h100")
    names = [f"half-{number}-{one}" for one in range(PODS)]
    with (
        inventories(stack) as told,
        Observer(stack.api, PATH).watching() as pods,
        Observer(stack.api, TRIGGERS).watching() as triggers,
    ):
        began = time.monotonic()
        stack.add_pods([pod(name, NAMESPACE, claimed="half") for name in names])
        triggers.until(lambda seen: seen.history, seconds=LONGEST, what="a trigger pod")
        found["created → trigger pod"].append(time.monotonic() - began)
        bound: dict[str, float] = {}

        def note(seen: Observer) -> bool:
            for one in seen.now.values():
                if one["spec"].get("nodeName"):
                    bound.setdefault(one["metadata"]["name"], time.monotonic())
            return len(bound) == PODS

        pods.until(note, seconds=LONGEST, what="all bound")
    (told_at,) = told.values()
    found["inventory → pod bound"] += [max(moment - told_at, 0.0) for moment in bound.values()]
    found["created → all bound"].append(max(bound.values()) - began)
    _clear(stack, karpenter)


def _floor(stack: Stack, karpenter: Karpenter, number: int, found: dict[str, list[float]]) -> None:
    karpenter.pool("plain", "cpu-only", shape=False)
    body = pod(f"plain-{number}", NAMESPACE, resources={"cpu": 60}, scheduler="default-scheduler")
    with Observer(stack.api, PATH).watching() as pods:
        began = time.monotonic()
        stack.add_pods([body])
        pods.until(_is_bound(body), seconds=LONGEST, what="the plain pod bound")
        found["floor: created → bound"].append(time.monotonic() - began)
    _clear(stack, karpenter)


def _is_bound(body: Json) -> Callable[[Observer], bool]:
    name = body["metadata"]["name"]
    return lambda seen: any(one["spec"].get("nodeName") for one in seen.named(name))


def _clear(stack: Stack, karpenter: Karpenter) -> None:
    stack.api.delete(NODE_POOLS)
    stack.api.delete(PATH, grace_seconds=0)
    stack.api.delete(NODE_CLAIMS)
    eventually(lambda: not karpenter.claims() and not stack.api.items(PATH), seconds=LONGEST, what="nothing left")


def _table(found: dict[str, list[float]]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("seconds", "times", "median", "p99", "most", "aim")]
    for name, values in found.items():
        median, high = (f"{np.percentile(values, share):.2f}" for share in (50, 99))
        aim = f"≤ {AIMS[name]:g}" if name in AIMS else ""
        rows.append((name, str(len(values)), median, high, f"{max(values):.2f}", aim))
    return rows


if __name__ == "__main__":
    sys.exit(main())
