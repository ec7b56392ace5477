"""What users may not say of their pods: results of an allocation are written by schedulers only, and GPU pods placed by
gpuplane only.

The user here has all rights in the namespace that RBAC can give, subresources and Bindings among them: what holds is
admission alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.cluster.controlplane.api import Api, ApiRefused, Json
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import ALLOCATED, AMOUNTS, KOORDINATOR, VISIBLE, settled

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
FORGED = {
    ALLOCATED: "guarded:1",
    VISIBLE: "GPU-guarded-1",
    AMOUNTS: '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"1"}}]}',
    KOORDINATOR: '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"1"}}]}',
    "run.ai/reserve_for_gpu_index": "1",
    "hami.io/vgpu-node": "guarded",
    "hami.io/vgpu-devices-allocated": "GPU-guarded-1,NVIDIA,1000,10:;",
    "hami.io/vgpu-devices-to-allocate": "GPU-guarded-1,NVIDIA,1000,10:;",
    "hami.io/bind-phase": "success",
}
"""Results in the words of gpuplane, Koordinator, KAI and HAMi."""
FORGED_LABELS = {"runai-gpu-group": "group-1", "runai-gpu-group/group-1": "group-1"}
SAID = "is the result of an allocation"


@contextmanager
def user(stack: Stack, namespace: str) -> Iterator[Api]:
    """Somebody with every right in the namespace, and none outside."""
    stack.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "dev"}})
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    stack.api.create(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": "dev"}, "rules": [everything]})
    bound_to = {
        "metadata": {"name": "dev"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "dev"},
        "subjects": [{"kind": "ServiceAccount", "name": "dev", "namespace": namespace}],
    }
    stack.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", bound_to)
    made = stack.plane.user(namespace, "dev")
    try:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        eventually(lambda: made.http.get(pods).status_code == 200, seconds=10, what="the rights reach the API server")
        yield made
    finally:
        made.close()


def refusal(api: Api, method: str, path: str, body: object, *, kind: str = "application/json") -> str:
    """What the API server says against it. AssertionError where it says nothing."""
    with pytest.raises(ApiRefused) as refused:
        api.request(method, path, body, kind=kind)
    assert refused.value.code == 403, refused.value
    return refused.value.message


def carried(stack: Stack, namespace: str, name: str) -> dict[str, str]:
    """Annotations and labels of a pod."""
    meta = stack.get_pod(namespace, name)["metadata"]
    return {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}


def binding(name: str, node: str, **metadata: object) -> Json:
    """A Binding made by hand."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def test_results_forged_at_creation_are_refused(stack: Stack, namespace: str) -> None:
    """CLAIM-6 every dialect's result, as annotation or label, on pods that ask for devices and on others: refused, with
    its name.
    """
    with user(stack, namespace) as dev:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        for asked in ({"nvidia.com/gpu": 1}, {"kubernetes.io/gpu": 50}, {"cpu": 1}):
            for key, value in FORGED.items():
                body = pod("forged", namespace, resources=asked, annotations={key: value})
                assert f"{key} {SAID}" in refusal(dev, "POST", pods, body)
            for key, value in FORGED_LABELS.items():
                body = pod("forged", namespace, resources=asked)
                body["metadata"]["labels"][key] = value
                assert f"{key} {SAID}" in refusal(dev, "POST", pods, body)
        forged = pod("forged", namespace, resources={"nvidia.com/gpu": 1}, annotations=FORGED)
        assert SAID in refusal(dev, "POST", f"{pods}?dryRun=All", forged)
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "forged", "namespace": namespace},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "forged"}},
                "template": {
                    "metadata": {"labels": {"app": "forged"}, "annotations": {ALLOCATED: "guarded:1"}},
                    "spec": forged["spec"],
                },
            },
        }
        dev.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)

        def told() -> bool:
            sets = dev.items(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
            conditions = [one for found in sets for one in found["status"].get("conditions", [])]
            return any(one["type"] == "ReplicaFailure" and SAID in one["message"] for one in conditions)

        eventually(told, seconds=20, what="the ReplicaSet says why it makes no pods")
        dev.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/forged")
        assert stack.api.items(pods) == []


def test_results_forged_later_are_refused(stack: Stack, namespace: str) -> None:
    """CLAIM-6 by every verb, patch and subresource: set on a waiting pod, changed or removed on a bound one; refused or
    without effect.
    """
    stack.add_nodes(["guarded"], gpus=2)
    with user(stack, namespace) as dev:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        dev.create(
            pods,
            pod("waits", namespace, resources={"nvidia.com/gpu": 1}, scheduler="nobody", annotations={"note": "x"}),
        )
        dev.create(pods, pod("runs", namespace, resources={"kubernetes.io/gpu": 50}))
        eventually(
            lambda: stack.get_pod(namespace, "runs")["spec"].get("nodeName"), seconds=20, what="the second pod bound"
        )
        for name in ("waits", "runs"):
            before = carried(stack, namespace, name)
            for key, value in FORGED.items():
                merge = {"metadata": {"annotations": {key: value}}}
                pointer = f"/metadata/annotations/{key.replace('/', '~1')}"
                steps = [{"op": "add", "path": pointer, "value": value}]
                apply = {"apiVersion": "v1", "kind": "Pod", **merge}
                tried = [
                    ("merge patch", merge, "application/merge-patch+json", ""),
                    ("strategic patch", merge, STRATEGIC, ""),
                    ("JSON patch", steps, JSON_PATCH, ""),
                    ("apply", apply, APPLY, "?fieldManager=forger&force=true"),
                    ("status", merge, STRATEGIC, "/status"),
                ]
                for what, body, kind, where in tried:
                    said = refusal(dev, "PATCH", f"{pods}/{name}{where}", body, kind=kind)
                    assert f"{key} {SAID}" in said, what
            stored = stack.get_pod(namespace, name)
            forged = {**stored, "metadata": {**stored["metadata"], "annotations": {**FORGED}}}
            for where in ("", "/status"):
                assert SAID in refusal(dev, "PUT", f"{pods}/{name}{where}", forged)
            assert SAID in dev.kubectl(
                "annotate", "pod", name, "-n", namespace, f"{ALLOCATED}=guarded:1", "--overwrite", refused=True
            )
            for key, value in FORGED_LABELS.items():
                said = refusal(dev, "PATCH", f"{pods}/{name}", {"metadata": {"labels": {key: value}}}, kind=STRATEGIC)
                assert f"{key} {SAID}" in said
            # the API server itself takes nothing but their own fields from these two; nodes played by KWOK cannot
            # resize
            dev.patch(f"{pods}/{name}/ephemeralcontainers", {"metadata": {"annotations": FORGED}}, kind=STRATEGIC)
            with suppress(ApiRefused):
                dev.patch(f"{pods}/{name}/resize", {"metadata": {"annotations": FORGED}}, kind=STRATEGIC)
            assert carried(stack, namespace, name) == before
        for gone in (None, {ALLOCATED: None}, {VISIBLE: None, AMOUNTS: None}):
            assert SAID in refusal(dev, "PATCH", f"{pods}/runs", {"metadata": {"annotations": gone}}, kind=STRATEGIC)
        # everything else about their pods is theirs
        dev.patch(f"{pods}/runs", {"metadata": {"annotations": {"note": "mine"}, "labels": {"team": "mine"}}})
        dev.patch(f"{pods}/runs/status", {"status": {"message": "mine"}})
        dev.delete(f"{pods}/waits", grace_seconds=0)
        settled(stack)


def test_a_gpu_pod_is_bound_by_gpuplane_only(stack: Stack, namespace: str) -> None:
    """DEV-11 a Binding made by hand is refused for a pod that asks for devices, whatever it asks by, and passes for
    another.
    """
    stack.add_nodes(["bind-by-hand"], gpus=2)
    stack.api.apply(claim("one", namespace))
    asking = {
        "by-claim": pod("by-claim", namespace, claimed="one", scheduler="nobody"),
        "by-native": pod("by-native", namespace, resources={"nvidia.com/gpu": 1}, scheduler="nobody"),
        "by-share": pod("by-share", namespace, resources={"koordinator.sh/gpu": 50}, scheduler="nobody"),
        "by-init": pod(
            "by-init",
            namespace,
            scheduler="nobody",
            initContainers=[{"name": "first", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        ),
    }
    with user(stack, namespace) as dev:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        stack.add_pods(
            [*asking.values(), pod("plain", namespace, scheduler="nobody"), pod("other", namespace, scheduler="nobody")]
        )
        for name in asking:
            for path in (f"{pods}/{name}/binding", f"/api/v1/namespaces/{namespace}/bindings"):
                assert "only gpuplane binds such pods" in refusal(dev, "POST", path, binding(name, "bind-by-hand"))
                assert "only gpuplane binds such pods" in refusal(
                    stack.api, "POST", path, binding(name, "bind-by-hand")
                )
            assert not stack.get_pod(namespace, name)["spec"].get("nodeName")
        for name in ("by-native", "plain"):
            for told in (
                {"annotations": {ALLOCATED: "bind-by-hand:0"}},
                {"annotations": FORGED},
                {"labels": FORGED_LABELS},
            ):
                said = refusal(dev, "POST", f"{pods}/{name}/binding", binding(name, "bind-by-hand", **told))
                assert SAID in said
            assert not stack.get_pod(namespace, name)["spec"].get("nodeName")
        dev.create(f"{pods}/plain/binding", binding("plain", "bind-by-hand", annotations={"note": "mine"}))
        dev.create(f"/api/v1/namespaces/{namespace}/bindings", binding("other", "bind-by-hand"))
        for name in ("plain", "other"):
            assert stack.get_pod(namespace, name)["spec"]["nodeName"] == "bind-by-hand"
        assert carried(stack, namespace, "plain")["note"] == "mine"
        for name in asking:
            dev.delete(f"{pods}/{name}", grace_seconds=0)


def test_a_gpu_pod_is_not_created_on_a_node(stack: Stack, namespace: str) -> None:
    """DEV-11 a pod that asks for devices and names its node needs no Binding: it would run past gpuplane, and is
    refused.
    """
    stack.add_nodes(["named-by-hand"], gpus=2)
    stack.api.apply(claim("one", namespace))
    with user(stack, namespace) as dev:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        for body in (
            pod("by-claim", namespace, claimed="one", nodeName="named-by-hand"),
            pod("by-native", namespace, resources={"nvidia.com/gpu": 1}, nodeName="named-by-hand"),
            pod("by-share", namespace, resources={"kubernetes.io/gpu": 50}, nodeName="named-by-hand"),
        ):
            said = refusal(dev, "POST", pods, body)
            assert "spec.nodeName: only gpuplane places pods that ask for devices" in said
        dev.create(pods, pod("plain", namespace, nodeName="named-by-hand"))
        assert [one["metadata"]["name"] for one in stack.api.items(pods)] == ["plain"]


def test_nobody_takes_of_what_pods_are_counted_by(stack: Stack, namespace: str) -> None:
    """A pod without devices would keep others off a node; one with devices counts as one, whatever its owner writes."""
    counted = "gpu.scheduling/pods"
    with user(stack, namespace) as dev:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        said = refusal(dev, "POST", pods, pod("greedy", namespace, resources={counted: 100_000}))
        assert f"{counted} is set by gpuplane" in said
        made = dev.create(pods, pod("many", namespace, resources={"kubernetes.io/gpu": 50, counted: 7}))
        amounts = made["spec"]["containers"][0]["resources"]
        assert (amounts["limits"][counted], amounts["requests"][counted]) == ("1", "1")
        made = dev.create(pods, pod("native", namespace, resources={"nvidia.com/gpu": 1, counted: 7}))
        amounts = made["spec"]["containers"][0]["resources"]
        assert amounts["limits"] == amounts["requests"] == {"nvidia.com/gpu": "1"}
