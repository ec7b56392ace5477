"""The chart's webhooks before a real API server: they hear of exactly what concerns gpuplane.

Their conditions are CEL, made of names in the chart; what they must agree with is claims/admission/recognise.py.
"""

import json
import uuid
from collections.abc import Iterator

import msgspec
import pytest
import yaml

from claims.admission.recognise import looks_ours
from claims.admission.trust import result_dialect
from tests.cluster.controlplane.api import Api, ApiRefused
from tests.cluster.controlplane.chart import CHART, NAMESPACE, RELEASE, RESERVATIONS, of_kinds, render
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import free_ports
from tests.cluster.recorder import TEAM, Json, Recorder, applied, bare_server, followed, rights

CLAIM = {"gpu.scheduling/claim": "two-cards"}


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server for this module."""
    with bare_server() as made:
        yield made


@pytest.fixture(scope="module")
def recorder(server: ControlPlane) -> Iterator[Recorder]:
    """A recorder in the place of gpuplane, under the chart's webhooks."""
    made = Recorder(server)
    values = {"webhooks": {"url": made.url, "caBundle": server.authority.pem, "excludedNamespaces": ["left-alone"]}}
    server.namespace("left-alone")
    hooks = of_kinds(
        render(values), "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "CustomResourceDefinition"
    )
    try:
        with applied(server.api, hooks):
            followed(lambda: _called(server.api, made), what="the webhooks are called")
            yield made
    finally:
        made.close()


def _called(api: Api, recorder: Recorder) -> bool:
    """Whether the webhooks are called by now."""
    name = f"probe-{uuid.uuid4().hex}"
    dry_create(api, pod(name, annotations=CLAIM))
    return recorder.of(name) == {"pods/mutate", "pods/validate"}


def pod(
    name: str,
    *,
    annotations: Json | None = None,
    labels: Json | None = None,
    resources: Json | None = None,
    init: Json | None = None,
) -> Json:
    """A pod of the team with one container of these resources, and an init container of those."""
    spec: Json = {"containers": [{"name": "main", "image": "none", "resources": resources or {}}]}
    if init is not None:
        spec["initContainers"] = [{"name": "first", "image": "none", "resources": init}]
    metadata = {"name": name, "namespace": TEAM, "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def dry_create(api: Api, body: Json) -> None:
    """Create it as far as admission goes."""
    api.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/pods?dryRun=All", body)


def both(name: str, amount: str = "1") -> Json:
    """Limits and requests of an extended resource."""
    return {"limits": {name: amount}, "requests": {name: amount}}


NAMES = yaml.safe_load((CHART / "files" / "recognised.yaml").read_text())
RESULTS = [*NAMES["results"]["exact"], "runai-gpu-group/a", "hami.io/vgpu-time", "hami.io/bind-phase"]
RESULTS += ["hami.io/x-devices-allocated", "hami.io/x-devices-to-allocate"]
CREATED = [
    pytest.param(pod("plain"), id="nothing of ours"),
    pytest.param(
        pod("bare", resources={"limits": {"cpu": "1"}}, init={"requests": {"memory": "1Gi"}}), id="cpu and memory"
    ),
    pytest.param(pod("efa", resources=both("vpc.amazonaws.com/efa")), id="another extended resource"),
    pytest.param(pod("amd", resources=both("amd.com/gpu")), id="another vendor's GPU"),
    pytest.param(pod("near", annotations={"gpu.scheduling/claims": "x"}), id="annotation almost ours"),
    pytest.param(
        pod("policy", annotations={"hami.io/gpu-scheduler-policy": "spread"}), id="HAMi's users' own annotation"
    ),
    pytest.param(pod("init", init=both("nvidia.com/gpu")), id="asks in an init container only"),
    pytest.param(
        pod("zeros", resources=both("nvidia.com/gpu", "1"), init=both("nvidia.com/gpu", "0")), id="asks for 0 too"
    ),
    pytest.param(pod("limits", resources={"limits": {"nvidia.com/gpu": "2"}}), id="limits only"),
    *(
        pytest.param(pod(f"a{n}", annotations={key: "1"}), id=f"asks by {key}")
        for n, key in enumerate(NAMES["askingAnnotations"])
    ),
    *(
        pytest.param(pod(f"r{n}", resources=both(key)), id=f"asks for {key}")
        for n, key in enumerate(NAMES["resources"])
    ),
    *(pytest.param(pod(f"s{n}", annotations={key: "x"}), id=f"carries {key}") for n, key in enumerate(RESULTS)),
    *(pytest.param(pod(f"l{n}", labels={key: "x"}), id=f"is labelled {key}") for n, key in enumerate(RESULTS)),
]


@pytest.mark.parametrize("amount", ["0", "0m", "0.0", "0Ki"])
def test_what_is_asked_for_with_nothing_is_not_asked_for(server: ControlPlane, recorder: Recorder, amount: str) -> None:
    """Charts write `nvidia.com/gpu: 0` where no GPU is wanted: such pods are nobody's business while gpuplane
    is away.
    """
    name = f"nothing-{uuid.uuid4().hex}"
    dry_create(
        server.api, pod(name, resources=both("nvidia.com/gpu", amount), init=both("kubernetes.io/gpu-core", amount))
    )
    assert recorder.of(name) == set()


@pytest.mark.parametrize("where", ["resources", "init"])
def test_pods_that_count_themselves_are_heard_of(server: ControlPlane, recorder: Recorder, where: str) -> None:
    """Taking of the resource by which pods are counted makes no pod ours, but is refused: only one webhook looks."""
    name = f"counted-{where}"
    dry_create(server.api, pod(name, **{where: both(NAMES["counted"], "5")}))
    assert recorder.of(name) == {"pods/validate"}
    dry_create(server.api, pod(f"{name}-none", **{where: both(NAMES["counted"], "0")}))
    assert recorder.of(f"{name}-none") == set()


@pytest.mark.parametrize("body", CREATED)
def test_created_pods_are_heard_of_exactly_when_they_concern_us(
    server: ControlPlane, recorder: Recorder, body: Json
) -> None:
    dry_create(server.api, body)

    metadata = body["metadata"]
    carries = any(result_dialect(key) for key in (*metadata["annotations"], *metadata["labels"]))
    ours = looks_ours(msgspec.Raw(json.dumps(body).encode()))
    want = {"pods/validate"} if ours else set()
    if ours and not (carries and not asks(body)):
        want.add("pods/mutate")
    assert recorder.of(metadata["name"]) == want


def asks(body: Json) -> bool:
    """Whether it would still concern us without the results that it carries."""
    metadata = body["metadata"]
    kept = {
        part: {k: v for k, v in metadata[part].items() if not result_dialect(k)} for part in ("annotations", "labels")
    }
    return looks_ours(msgspec.Raw(json.dumps({**body, "metadata": {**metadata, **kept}}).encode()))


RESULT = "gpu.scheduling/allocated"
UPDATED = [
    pytest.param({}, {"labels": {"app": "x"}}, False, id="another label"),
    pytest.param(
        {"annotations": CLAIM}, {"annotations": {"note": "x"}}, False, id="another annotation of a pod that asks"
    ),
    pytest.param({}, {"annotations": {RESULT: "n1:0"}}, True, id="result set"),
    pytest.param({"annotations": {RESULT: "n1:0"}}, {"annotations": {RESULT: "n1:1"}}, True, id="result changed"),
    pytest.param({"annotations": {RESULT: "n1:0"}}, {"annotations": {RESULT: None}}, True, id="result taken away"),
    pytest.param({"annotations": {RESULT: "n1:0"}}, {"annotations": None}, True, id="all annotations taken away"),
    pytest.param({"annotations": {RESULT: "n1:0"}}, {"annotations": {"note": "x"}}, False, id="result stays"),
    pytest.param({"labels": {"runai-gpu-group": "a"}}, {"labels": {"runai-gpu-group": "b"}}, True, id="label changed"),
    pytest.param({}, {"labels": {"runai-gpu-group/a": "b"}}, True, id="label set"),
    pytest.param({}, {"annotations": {"hami.io/vgpu-node": "n1"}}, True, id="another dialect's result set"),
]


@pytest.mark.parametrize("subresource", ["", "/status"], ids=["pod", "status"])
@pytest.mark.parametrize(("before", "change", "want"), UPDATED)
def test_updates_are_heard_of_exactly_when_a_result_changes(
    server: ControlPlane, recorder: Recorder, before: Json, change: Json, want: bool, subresource: str
) -> None:
    path = f"/api/v1/namespaces/{TEAM}/pods"
    name = f"u-{uuid.uuid4().hex}"
    server.api.create(path, pod(name, **before))
    recorder.heard.clear()
    try:
        server.api.patch(f"{path}/{name}{subresource}", {"metadata": change})
        assert recorder.of(name) == ({"pods/validate"} if want else set())
    finally:
        server.api.delete(f"{path}/{name}", grace_seconds=0)


@pytest.mark.parametrize("namespace", ["kube-system", NAMESPACE, RESERVATIONS, "left-alone"])
def test_excluded_namespaces_are_left_alone(server: ControlPlane, recorder: Recorder, namespace: str) -> None:
    server.namespace(namespace)
    body = pod(f"in-{namespace}", annotations={**CLAIM, RESULT: "n1:0"}, resources=both("nvidia.com/gpu"))
    dry_create(server.api, {**body, "metadata": {**body["metadata"], "namespace": namespace}})
    assert recorder.of(f"in-{namespace}") == set()


@pytest.mark.parametrize("path", ["pods/{name}/binding", "bindings"], ids=["pods/binding", "bindings"])
@pytest.mark.parametrize(("own", "want"), [(False, {"bindings/validate"}), (True, set())], ids=["a stranger's", "ours"])
def test_bindings_of_others_are_heard_of(
    server: ControlPlane, recorder: Recorder, path: str, own: bool, want: set[str]
) -> None:
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    name = f"b-{uuid.uuid4().hex}"
    server.api.create(pods, pod(name))
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    try:
        # the scheduler's rights beside ours: they have `bindings` too
        with applied(server.api, rights()):
            who = server.user(NAMESPACE, RELEASE) if own else server.api
            who.create(f"/api/v1/namespaces/{TEAM}/{path.format(name=name)}", body)
            if own:
                who.close()
        assert recorder.of(name) == want
        assert server.api.get(f"{pods}/{name}")["spec"]["nodeName"] == "n1"
    finally:
        server.api.delete(f"{pods}/{name}", grace_seconds=0)


def test_claims_are_heard_of_and_their_status_is_not(server: ControlPlane, recorder: Recorder) -> None:
    path = f"/apis/gpu.scheduling/v1/namespaces/{TEAM}/gpuclaims"
    meta = {"name": "two-cards", "namespace": TEAM}
    server.api.create(
        path,
        {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": meta, "spec": {"devices": {"count": 2}}},
    )
    try:
        assert recorder.of("two-cards") == {"gpuclaims/validate"}
        recorder.heard.clear()
        server.api.patch(f"{path}/two-cards/status", {"status": {"phase": "Pending"}})
        assert recorder.of("two-cards") == set()
        server.api.patch(f"{path}/two-cards", {"spec": {"devices": {"count": 3}}})
        assert recorder.of("two-cards") == {"gpuclaims/validate"}
    finally:
        server.api.delete(f"{path}/two-cards")


def test_pod_with_many_annotations_stays_within_the_cost_limit(server: ControlPlane, recorder: Recorder) -> None:
    """The API server refuses a pod whose conditions cost too much: as many and as large as annotations may be."""
    many = {f"n{number:04}.example.org/a": "x" for number in range(10_000)}
    dry_create(server.api, pod("many", annotations=many))
    assert recorder.of("many") == set()


def test_while_gpuplane_is_away_only_our_pods_wait(server: ControlPlane) -> None:
    """failurePolicy as the chart sets it: pods and Bindings that are not ours go through a door that nobody answers."""
    (closed,) = free_ports(1)
    values = {
        "fullnameOverride": "away",
        "webhooks": {"url": f"https://127.0.0.1:{closed}", "caBundle": server.authority.pem},
    }
    hooks = of_kinds(render(values), "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    with applied(server.api, hooks):
        followed(
            lambda: "failed calling webhook" in refusal(server.api, pod("away", annotations=CLAIM)), what="ours waits"
        )
        server.api.create(pods, pod("not-ours"))
        try:
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "not-ours"},
                "target": {"kind": "Node", "name": "n1"},
            }
            server.api.create(f"{pods}/not-ours/binding", binding)
            server.api.patch(f"{pods}/not-ours/status", {"status": {"phase": "Running"}})
        finally:
            server.api.delete(f"{pods}/not-ours", grace_seconds=0)


def refusal(api: Api, body: Json) -> str:
    """What the API server says against it; empty where it lets it in."""
    try:
        dry_create(api, body)
    except ApiRefused as refused:
        return refused.message
    return ""
