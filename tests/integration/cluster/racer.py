"""One of the processes of test_races: a web process of its own that takes devices as fast as it can, through the door
that kube-scheduler asks.

Run as `python -m tests.integration.cluster.racer NUMBER ATTEMPTS`, on the database and the API server of its
environment; prints a JSON line with what it met. It plays kube-scheduler (a few pods at a time, refused ones again and
again), their users, who delete them, and the watch, which hears of that.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django

KEEPERS = 2
"""Processes of which one pod runs on after the race."""
MOST = 12
"""Times the questions that it asks at most."""
TOGETHER = 4
"""Pods that are bound at once, at most."""


class Racer:
    """`number` of several; pods are its own, devices everybody's."""

    def __init__(self, number: int) -> None:
        from django.conf import settings

        from kube.client import Cluster
        from kube.shared import shared_cluster
        from nodes.models import Node

        found = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        assert found is not None
        self.cluster: Cluster = found
        self.number = number
        self.chance = random.Random(number)
        self.nodes = list(Node.objects.values_list("name", flat=True))
        self.met: Counter[str] = Counter()
        self.made = 0
        self.pending: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []

    def race(self, attempts: int) -> Counter[str]:
        """So many questions to filter, and more until a twentieth of them were bound, which takes longer on a machine
        at work; whoever is held is mostly bound, some holds are left behind as a crash would.
        """
        from allocations.watching import Watching
        from tests.door import Door

        with Door() as door, ThreadPoolExecutor(2) as threads:
            watching = Watching(threads)
            asked = 0
            while asked < attempts or (self.met["bound"] <= attempts // 20 and asked < MOST * attempts):
                wanted = self.chance.randint(1, TOGETHER)
                asked += wanted
                self._bind(door, [self._next() for _ in range(wanted)])
                if self.running and self.chance.random() < 0.8:
                    self._end(watching)
            # those that are slower need devices too; a few pods run on
            while len(self.running) > (1 if self.number < KEEPERS else 0):
                self._end(watching)
            watching.settle()
        return self.met

    def _next(self) -> dict[str, Any]:
        """A pod that waits, made now or refused before."""
        from kube.keys import CLAIM

        if len(self.pending) >= TOGETHER:
            return self.pending.pop(0)
        self.made += 1
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{self.number}-{self.made}",
                "namespace": "research",
                "annotations": {CLAIM: self.chance.choice(("one", "one", "half", "two"))},
            },
            "spec": {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "image": "x"}]},
        }
        made: dict[str, Any] = json.loads(self.cluster.request("POST", "/api/v1/namespaces/research/pods", body=body))
        return made

    def _bind(self, door: Any, pods: list[dict[str, Any]]) -> None:
        held = []
        for pod in pods:
            node = door.filtered(pod, self.nodes)
            self.met["refused" if node is None else "held"] += 1
            if node is None:
                self.pending.append(pod)
            elif self.chance.random() < 0.997:
                held.append((pod, node))
        for (pod, _), error in zip(held, door.bound_together(held), strict=True):
            self.met["bind failed" if error else "bound"] += 1
            (self.pending if error else self.running).append(pod)

    def _end(self, watching: Any) -> None:
        """The user deletes a pod, and the watch hears of it."""
        from kube.objects import Pod
        from kube.watch import Changed

        pod = self.running.pop(self.chance.randrange(len(self.running)))
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        gone = self.cluster.request("DELETE", path, body={"gracePeriodSeconds": 0})
        watching.handle(Changed("DELETED", (meta["namespace"], meta["name"]), _pod(gone, Pod)))
        self.met["ended"] += 1


def _pod(body: bytes, kind: Any) -> Any:
    import msgspec

    return msgspec.json.decode(body, type=kind)


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(Racer(int(sys.argv[1])).race(int(sys.argv[2]))) + "\n")
