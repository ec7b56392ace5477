"""Nodes with imitated kubelets, and what tests of reservation pods ask about groups."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.heartbeat import Heartbeat
from tests.cluster.controlplane.kubelet import DEVICE_PLUGIN, Kubelets, add_plugin_nodes
from tests.cluster.controlplane.objects import inventory, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.group_promises import RESERVED
from tests.cluster.invariants import VISIBLE
from tests.cluster.truth import GroupRow, read

RESERVATION_PODS = f"/api/v1/namespaces/{chart.RESERVATIONS}/pods"
SOON = 30.0


@contextmanager
def kubelets(
    stack: Stack, names: Iterable[str], *, gpus: int = 8, fast: bool = True, agents: bool = False, **about: Any
) -> Iterator[Kubelets]:
    """Such nodes and their kubelets. `agents`: gpuplane is told what the kubelets record; else it knows pods only."""
    nodes = add_plugin_nodes(stack, names, gpus=gpus, **about)
    with ExitStack() as opened:
        beating = {}
        for name in nodes if agents else ():
            body = {**inventory(name, gpus=gpus, **about), "mode": DEVICE_PLUGIN["gpu.scheduling/mode"]}
            beating[name] = Heartbeat(stack, body)
            opened.enter_context(beating[name].beating())
        heard = partial(_told, beating) if agents else None
        yield opened.enter_context(Kubelets(stack.plane, nodes, fast=fast, heard=heard, seed=7).running())


def _told(agents: Mapping[str, Heartbeat], name: str, record: Mapping[str, Sequence[str]]) -> None:
    agents[name].kubelet_gave({uid: [int(gpu.rpartition("-")[2]) for gpu in gpus] for uid, gpus in record.items()})


def half(name: str, namespace: str, *, fraction: str = "0.5", on: str = "", **spec: Any) -> Json:
    """A pod with a part of a GPU in KAI's words; `on`: the only node that it may have."""
    return pod(name, namespace, annotations={"gpu-fraction": fraction}, **selecting(on), **spec)


def plain(name: str, namespace: str, *, on: str = "") -> Json:
    """A pod by `nvidia.com/gpu` whose GPU the kubelet chooses."""
    selected = {**selecting(on).get("nodeSelector", {}), **DEVICE_PLUGIN}
    return pod(name, namespace, resources={"nvidia.com/gpu": 1}, nodeSelector=selected)


def selecting(on: str) -> Json:
    """The part of a pod's spec that names its node for schedulers."""
    return {"nodeSelector": {"kubernetes.io/hostname": on}} if on else {}


def sees(stored: Json) -> list[str]:
    """UUIDs that a pod was given."""
    return sorted(stored["metadata"]["annotations"][VISIBLE].split(","))


def groups(stack: Stack, node: str = "") -> list[GroupRow]:
    """Those that are not gone."""
    return [one for one in read(stack).groups if node in ("", one.node)]


def states(stack: Stack, node: str = "") -> list[str]:
    """Of those groups."""
    return sorted(one.state for one in groups(stack, node))


def in_states(stack: Stack, node: str, *wanted: str, seconds: float = SOON) -> None:
    """Wait until the node's groups are in these states."""
    want = sorted(wanted)
    try:
        eventually(lambda: states(stack, node) == want, seconds=seconds, what=f"groups of {node} are {want}")
    except AssertionError as error:
        error.add_note(f"they are {groups(stack, node)}")
        raise


def reservation_pods(stack: Stack, node: str = "") -> list[Json]:
    """Those that there are."""
    found = [one for one in stack.api.items(RESERVATION_PODS) if "runai-gpu-group" in one["metadata"].get("labels", {})]
    return [one for one in found if node in ("", one["spec"].get("nodeName"))]


def named_gpu(stored: Json) -> str:
    """What a reservation pod tells."""
    return str((stored["metadata"].get("annotations") or {}).get(RESERVED, ""))


def watching(stack: Stack, namespace: str) -> Observer:
    """An observer of the namespace's pods."""
    return Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods")


def happened(stack: Stack, kind: str, node: str) -> list[str]:
    """Messages of gpuplane's events of that kind about the node."""
    answer = stack.gpuplane.rest.get("/api/v1/events/", params={"kind": kind, "node": node, "page_size": 100})
    return [one["message"] for one in answer.raise_for_status().json()["results"]]
