"""What admission does with pods of queues and gangs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from claims.admission.mutate import mutate_pod
from claims.admission.trust import Trust
from claims.admission.validate_pod import validate_pod
from claims.queue_tree import Queue, QueueTree
from claims.queues import StoredQueues
from tests.unit.claims.admission.reviews import US, pod, review

TRUST = Trust(own=frozenset({US}), schedulers={})
NAMESPACE = "team"


def stored(*queues: Queue, default: bool = False, teams: Mapping[str, str] = {}) -> StoredQueues:
    owners = {namespace: frozenset({team}) for namespace, team in teams.items()}
    return StoredQueues(QueueTree(queues), {}, bool(queues), default, owners)


def asking(labels: dict[str, str], **spec: Any) -> Any:
    return pod(labels=labels, requests={"nvidia.com/gpu": "1"}, **spec)


def gates(labels: dict[str, str], queues: StoredQueues | None, **spec: Any) -> list[Any]:
    """The patch's gates."""
    answer = mutate_pod(review(asking(labels, **spec)), trust=TRUST, queues=queues)
    steps = msgspec.json.decode(base64.b64decode(answer.patch or base64.b64encode(b"[]")))
    return [step["value"] for step in steps if step["path"].startswith("/spec/schedulingGates")]


GATE = {"name": "gpu.scheduling/queue"}
RESEARCH = Queue("research")


@pytest.mark.parametrize(
    ("labels", "queues", "spec", "want"),
    [
        pytest.param({}, stored(), {}, [], id="no queue at all"),
        pytest.param({}, stored(RESEARCH), {}, [], id="untouched default"),
        pytest.param({}, stored(Queue("default"), default=True), {}, [[GATE]], id="default that somebody made"),
        pytest.param({"gpu.scheduling/queue": "research"}, stored(RESEARCH), {}, [[GATE]], id="by label"),
        pytest.param({"kai.scheduler/queue": "research"}, stored(RESEARCH), {}, [[GATE]], id="by KAI's label"),
        pytest.param({"gpu.scheduling/queue": "research"}, stored(), {}, [], id="label without queues"),
        pytest.param({}, stored(Queue("research", namespaces=(NAMESPACE,))), {}, [[GATE]], id="by namespace"),
        pytest.param({"gpu.scheduling/gang": "ring"}, None, {}, [[GATE]], id="a gang, queues not read yet"),
        pytest.param({"gpu.scheduling/queue": "research"}, None, {}, [], id="queues not read yet"),
        pytest.param(
            {"gpu.scheduling/gang": "ring"}, None, {"schedulingGates": [{"name": "other"}]}, [GATE], id="beside others"
        ),
        pytest.param({"gpu.scheduling/gang": "ring"}, None, {"schedulingGates": [GATE]}, [], id="there already"),
        pytest.param({"gpu.scheduling/gang": "ring"}, None, {"nodeName": "n1"}, [], id="placed by others"),
    ],
)
def test_gates(labels: dict[str, str], queues: StoredQueues | None, spec: dict[str, Any], want: list[Any]) -> None:
    """QUEUE-1 CLAIM-8 pods of queues and gangs are gated when they are made."""
    assert gates(labels, queues, **spec) == want


@pytest.mark.parametrize(
    ("queue", "teams", "allowed", "warned"),
    [
        pytest.param(Queue("research", namespaces=(NAMESPACE,)), {}, True, False, id="its namespace"),
        pytest.param(Queue("research", namespaces=("other",)), {}, False, False, id="of others"),
        pytest.param(
            Queue("research", namespaces=("other",)), {"other": "one", NAMESPACE: "one"}, True, False, id="same team"
        ),
        pytest.param(
            Queue("research", namespaces=("other",)), {"other": "one", NAMESPACE: "two"}, False, False, id="two teams"
        ),
        pytest.param(Queue("research"), {}, True, False, id="a queue for everybody"),
        pytest.param(Queue("elsewhere"), {}, True, True, id="a queue that is not there"),
    ],
)
def test_labels_of_other_queues(queue: Queue, teams: dict[str, str], allowed: bool, warned: bool) -> None:
    """QUEUE-1 only queues whose team the namespace belongs to."""
    request = review(asking({"gpu.scheduling/queue": "research"}))
    answer = validate_pod(request, trust=TRUST, queues=lambda: stored(queue, teams=teams))
    assert (answer.allowed, bool(answer.warnings)) == (allowed, warned)


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param(pod(labels={"gpu.scheduling/queue": "research"}), True, id="no devices"),
        pytest.param(
            pod(
                labels={"kai.scheduler/queue": "research"},
                annotations={"gpu-fraction": "0.5"},
                schedulerName="kai-scheduler",
            ),
            True,
            id="KAI places it",
        ),
        pytest.param(
            pod(
                labels={"kai.scheduler/queue": "research"},
                annotations={"gpu-fraction": "0.5"},
                schedulerName="gpu-scheduler",
            ),
            False,
            id="gpuplane places KAI's dialect",
        ),
        pytest.param(
            pod(labels={"gpu.scheduling/queue": "research"}, requests={"nvidia.com/mig-1g.10gb": "1"}),
            False,
            id="a MIG instance",
        ),
    ],
)
def test_labels_of_pods_that_others_place(manifest: Any, want: bool) -> None:
    """QUEUE-1 a queue's namespaces bind only pods whose devices gpuplane chooses."""
    queues = stored(Queue("research", namespaces=("other",)))
    answer = validate_pod(review(manifest), trust=TRUST, queues=lambda: queues)
    assert answer.allowed is want


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param(asking({"gpu.scheduling/queue": "gone"}), True, id="it requests devices"),
        pytest.param(pod(labels={"gpu.scheduling/queue": "gone"}), False, id="it requests none"),
    ],
)
def test_only_pods_with_devices_are_warned_of_a_queue_that_is_not_there(manifest: Any, want: bool) -> None:
    """QUEUE-1 a pod without devices goes to no queue."""
    answer = validate_pod(review(manifest), trust=TRUST, queues=lambda: stored(RESEARCH))
    assert (answer.allowed, bool(answer.warnings)) == (True, want)
