"""A waiting pod as the queueing loop reads it: stored with the pod's row, so that a decision needs no other source.

Written by `allocations.waiting`.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from allocations.attempts import UNKNOWN
from allocations.pod_request import PodRequest
from kube.keys import QUEUE_GATE
from kube.objects import Affinity, Pod, PodSpec, Toleration


class QueuedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename={"pod_request": "asks"}):
    """`gated`: whether our gate is on it; the rest: its rules for nodes. Rows that older versions wrote are read."""

    pod_request: PodRequest
    gated: bool = False
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None

    @property
    def spec(self) -> PodSpec:
        """What `kube.node_rules` reads."""
        return PodSpec(node_selector=self.node_selector, affinity=self.affinity, tolerations=self.tolerations)


def queued_pod(pod: Pod, pod_request: PodRequest) -> QueuedPod:
    """The pod, with what it asks for."""
    spec = pod.spec
    return QueuedPod(
        replace(pod_request, attempt=UNKNOWN),  # a hold of the queues is for no attempt yet
        any(gate.name == QUEUE_GATE for gate in spec.scheduling_gates or ()),
        spec.node_selector or None,
        spec.affinity,
        spec.tolerations or None,
    )


def gates_of_others(pod: Pod) -> list[str]:
    """Names of gates that are not ours."""
    return [gate.name for gate in pod.spec.scheduling_gates or () if gate.name != QUEUE_GATE]
