"""Pods that gpuplane makes for itself in its own namespace, told by their component: trigger pods and slots of models.

They ask for devices, and the rules for pods of users are not meant for them.
"""

from __future__ import annotations

from typing import Final

from django.conf import settings

from kube.client import Cluster
from kube.keys import COMPONENT_LABEL, SLOT, TRIGGER
from kube.objects import Pod
from kube.resources import PODS

_TRIGGERS: Final = f"{COMPONENT_LABEL}={TRIGGER}"


def is_trigger(pod: Pod) -> bool:
    """Whether the pod makes Karpenter make a node, which kube-scheduler then binds it to."""
    return _is(pod, TRIGGER)


def is_slot(pod: Pod) -> bool:
    """Whether the pod is a slot of a model: its memory is the slot's, whatever its variables name."""
    return _is(pod, SLOT)


def trigger_pods(cluster: Cluster) -> list[Pod]:
    """The trigger pods that are there. Raises `kube.errors`."""
    return cluster.list(PODS.path(namespace=settings.GPUPLANE_NAMESPACE), Pod, label_selector=_TRIGGERS).items


def _is(pod: Pod, component: str) -> bool:
    return pod.metadata.namespace == settings.GPUPLANE_NAMESPACE and pod.labels.get(COMPONENT_LABEL) == component
