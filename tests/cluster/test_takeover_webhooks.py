"""The webhooks of a gpuplane that takes a cluster over (`webhooks.scope=ours`), before a real API server: whom they
hear of, and whom not.
"""

import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.chart import of_kinds, render
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.recorder import TEAM, Recorder, applied, bare_server, followed
from tests.cluster.test_chart_webhooks import CLAIM, both, dry_create, pod

TAKEN = "taken-over"
ALL = {"pods/takeover", "pods/mutate", "pods/validate"}
OURS = {"pods/mutate", "pods/validate"}
GPU = both("nvidia.com/gpu")


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server for this module, with a namespace that is taken over."""
    with bare_server() as made:
        made.namespace(TAKEN)
        made.api.patch(f"/api/v1/namespaces/{TAKEN}", {"metadata": {"labels": {"gpu.scheduling/takeover": "enabled"}}})
        yield made


@pytest.fixture(scope="module")
def recorder(server: ControlPlane) -> Iterator[Recorder]:
    """A recorder in the place of gpuplane."""
    made = Recorder(server)
    values = {"webhooks": {"url": made.url, "caBundle": server.authority.pem, "scope": "ours"}}
    hooks = of_kinds(render(values), "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

    def called() -> bool:
        name = f"probe-{uuid.uuid4().hex}"
        dry_create(server.api, pod(name, annotations=CLAIM))
        return made.of(name) == OURS

    try:
        with applied(server.api, hooks):
            followed(called, what="the webhooks are called")
            yield made
    finally:
        made.close()


def placed(body: Json, *, namespace: str = TEAM, scheduler: str = "") -> Json:
    """The pod in another namespace, for another scheduler."""
    body["metadata"]["namespace"] = namespace
    if scheduler:
        body["spec"]["schedulerName"] = scheduler
    return body


RESULT, THEIRS = {"gpu.scheduling/allocated": "n1:0"}, {"hami.io/vgpu-node": "n1"}


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(pod("stock", resources=GPU), set(), id="a GPU pod of the stock scheduler"),
        pytest.param(placed(pod("kai", annotations={"gpu-fraction": "1"}), scheduler="kai"), set(), id="KAI's"),
        pytest.param(placed(pod("named", resources=GPU), scheduler="gpu-scheduler"), OURS, id="names our scheduler"),
        pytest.param(placed(pod("plain"), scheduler="gpu-scheduler"), set(), id="ours, and asks for nothing"),
        pytest.param(pod("claims", annotations=CLAIM), OURS, id="asks by a GpuClaim"),
        pytest.param(pod("plants", annotations=RESULT), {"pods/validate"}, id="carries a result of ours"),
        pytest.param(pod("theirs", annotations=THEIRS), set(), id="carries a result of another scheduler"),
        pytest.param(
            pod("counted", resources=both("gpu.scheduling/pods")), {"pods/validate"}, id="takes of what is counted"
        ),
        pytest.param(
            placed(pod("taken", resources=GPU), namespace=TAKEN), {"pods/takeover"}, id="in a namespace taken over"
        ),
        pytest.param(placed(pod("other"), namespace=TAKEN), set(), id="asks for nothing there"),
        pytest.param(
            placed(pod("out", resources=GPU, labels={"gpu.scheduling/takeover": "disabled"}), namespace=TAKEN),
            set(),
            id="opted out there",
        ),
        pytest.param(
            placed(pod("both", resources=GPU), namespace=TAKEN, scheduler="gpu-scheduler"), ALL, id="ours, there"
        ),
    ],
)
def test_who_is_heard_of_while_a_cluster_is_taken_over(
    server: ControlPlane, recorder: Recorder, body: Json, want: set[str]
) -> None:
    """DEV-11 others go on untouched; what is ours, or is to become so, is heard of. (The recorder rewrites no
    scheduler.)
    """
    dry_create(server.api, body)
    assert recorder.of(body["metadata"]["name"]) == want


@pytest.mark.parametrize(
    ("scheduler", "change", "want"),
    [
        ("", RESULT, {"pods/validate"}),
        ("", THEIRS, set()),
        ("gpu-scheduler", THEIRS, {"pods/validate"}),
        ("gpu-scheduler", {"note": "x"}, set()),
    ],
)
def test_updates_are_heard_of(
    server: ControlPlane, recorder: Recorder, scheduler: str, change: Json, want: set[str]
) -> None:
    """DEV-11 nobody plants a result of ours anywhere; other schedulers write theirs on their own pods."""
    path = f"/api/v1/namespaces/{TEAM}/pods"
    name = f"u-{uuid.uuid4().hex}"
    server.api.create(path, placed(pod(name), scheduler=scheduler))
    recorder.heard.clear()
    try:
        server.api.patch(f"{path}/{name}", {"metadata": {"annotations": change}})
        assert recorder.of(name) == want
    finally:
        server.api.delete(f"{path}/{name}", grace_seconds=0)
