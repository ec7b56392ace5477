"""`python -m tests.bench.cluster.refused`: how soon one is told that a gang has no room, again and again.

Ten pods of 8 GPUs as one gang, on nine nodes of 8. The time runs from the API server's answer to the last pod until
REST has the reason, and until a watch hears of the event at a pod, which `kubectl describe` shows. The floor of the
same run: from an event that somebody makes until the watch hears of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

from tests.bench.cluster.printing import markdown
from tests.bench.machine import machine_told
from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import Stack, eventually, running_stack

NAMESPACE = "refused"
GPUS = 8
NODES = 9
PODS = NODES + 1
KINDS = "/apis/gpu.scheduling/v1"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LONGEST = 60.0
LOOK_SECONDS = 0.005
REASON = "room for"
AIM = 1.0
ROWS = ("last pod → reason over REST", "last pod → event at a pod", "floor: event made → heard of")


def main() -> int:
    """Command line; 0 when every round could be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    machine = machine_told()
    found: dict[str, list[float]] = {name: [] for name in ROWS}
    with running_stack() as stack:
        stack.plane.namespace(NAMESPACE)
        stack.add_nodes([f"full-{number}" for number in range(NODES)], gpus=GPUS)
        for number in range(rounds):
            _ask(stack, f"gang-{number}", found)
    print(machine)
    print(markdown(_table(found)))
    return 0


def _ask(stack: Stack, name: str, found: dict[str, list[float]]) -> None:
    manifest = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuGang",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minMember": PODS},
    }
    stack.api.create(f"{KINDS}/namespaces/{NAMESPACE}/gpugangs", manifest)
    bodies = [_member(f"{name}-{number}", name) for number in range(PODS)]
    with Observer(stack.api, EVENTS).watching() as events:
        stack.add_pods(bodies[:-1])
        eventually(lambda: f"{PODS - 1} of {PODS} pods" in _reason(stack, name), seconds=LONGEST, what="all but one")
        stack.add_pods(bodies[-1:])
        began = time.monotonic()
        while REASON not in (said := _reason(stack, name)):
            assert time.monotonic() < began + LONGEST, said
            time.sleep(LOOK_SECONDS)
        found[ROWS[0]].append(time.monotonic() - began)
        events.until(
            lambda seen: any(REASON in one["message"] for one in _about(seen, name)), seconds=LONGEST, what=said
        )
        found[ROWS[1]].append(time.monotonic() - began)
        found[ROWS[2]].append(_floor(stack, events, name))
    stack.api.delete(PATH, grace_seconds=0)
    eventually(lambda: not stack.api.items(PATH), seconds=LONGEST, what="the pods gone")


def _member(name: str, gang: str) -> Json:
    made = pod(name, NAMESPACE, resources={"nvidia.com/gpu": GPUS})
    made["metadata"]["labels"] |= {"gpu.scheduling/gang": gang}
    return made


def _reason(stack: Stack, gang: str) -> str:
    """Why the gang's first pod waits."""
    answer = stack.gpuplane.rest.get(f"/api/v1/pods/{NAMESPACE}/{gang}-0/explain/")
    return str(answer.json().get("summary", "")) if answer.status_code == 200 else ""


def _about(events: Observer, gang: str) -> list[Json]:
    return [one for one in events.now.values() if one["involvedObject"]["name"].startswith(f"{gang}-")]


def _floor(stack: Stack, events: Observer, name: str) -> float:
    made = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}-floor", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "floor", "namespace": NAMESPACE},
        "message": "floor",
    }
    began = time.monotonic()
    stack.api.create(EVENTS, made)
    heard = f"{name}-floor"
    events.until(lambda seen: any(one["metadata"]["name"] == heard for one in seen.now.values()), seconds=5, what=heard)
    return time.monotonic() - began


def _table(found: dict[str, list[float]]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("seconds", "times", "median", "most", "aim")]
    for name, values in found.items():
        aim = "" if name == ROWS[-1] else f"≤ {AIM:g}: {'met' if max(values) <= AIM else 'MISSED'}"
        rows.append((name, str(len(values)), f"{np.median(values):.3f}", f"{max(values):.3f}", aim))
    return rows


if __name__ == "__main__":
    sys.exit(main())
