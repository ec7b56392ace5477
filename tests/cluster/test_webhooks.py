"""gpuplane away or hanging: what is not ours goes on, what is ours is refused with a reason, and what slipped past is
told.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import ApiRefused, Json, Observer
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import ALLOCATED, settled
from tests.cluster.waiting import bound, count_bound, pods_of, said

STOCK = "default-scheduler"
OTHERS_SECONDS = 20.0


@contextmanager
def stock_scheduler(stack: Stack) -> Iterator[None]:
    """The cluster's own scheduler beside ours, as it comes, without any extender."""
    path = stack.folder / "stock-scheduler.yaml"
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(stack.plane.admin_kubeconfig), "qps": 100, "burst": 200},
    }
    path.write_text(json.dumps(body))
    made = stack.plane.scheduler(path, name="stock-scheduler")
    try:
        made.start()
        yield
    finally:
        stack.plane.forget_scheduler(made)


@contextmanager
def without_web(stack: Stack) -> Iterator[None]:
    """gpuplane's web is stopped: nobody answers webhooks, the extender or REST."""
    stack.gpuplane.web.stop()
    try:
        yield
    finally:
        stack.gpuplane.web.start()


def plain(name: str, namespace: str, **more: Any) -> Json:
    """A pod that has nothing to do with us."""
    return pod(name, namespace, resources={"cpu": "100m"}, scheduler=STOCK, annotations={"note": "theirs"}, **more)


def deployment(name: str, namespace: str, replicas: int) -> Json:
    """A Deployment of such pods."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": plain("x", namespace)["spec"]},
        },
    }


def _guarded(stack: Stack, pods: str, name: str) -> bool:
    """Whether the API server refuses a Binding of the pod, tried without a trace."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "strict"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    try:
        stack.api.create(f"{pods}/{name}/binding?dryRun=All", body)
    except ApiRefused as refused:
        return "only gpuplane binds such pods" in refused.message
    return False


def why_refused(stack: Stack, path: str, body: Json) -> str:
    """What the API server says against creating it. AssertionError where it does not."""
    with pytest.raises(ApiRefused) as refused:
        stack.api.create(path, body)
    return refused.value.message


def test_other_pods_are_unharmed_while_gpuplane_is_away(stack: Stack, namespace: str) -> None:
    """DEV-11 created by users and controllers, bound by the stock scheduler, changed and deleted as ever, on GPU nodes
    too.
    """
    stack.add_nodes(["away-others"], gpus=2)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with stock_scheduler(stack), Observer(stack.api, pods).watching() as seen:
        stack.add_pods([pod("ours", namespace, resources={"nvidia.com/gpu": 1})])
        seen.until(bound("ours"), seconds=20, what="our pod bound before")
        with without_web(stack):
            stack.add_pods([plain(f"bare-{number}", namespace) for number in range(10)])
            stack.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment("many", namespace, 10))
            # many charts write the resource with 0 where no GPU is wanted
            stack.add_pods([pod("zero", namespace, resources={"nvidia.com/gpu": 0}, scheduler=STOCK)])
            seen.until(count_bound(22), seconds=OTHERS_SECONDS, what="twenty-one pods of others bound")
            stack.api.patch(f"{pods}/bare-0", {"metadata": {"labels": {"mine": "yes"}, "annotations": {"note": None}}})
            stack.api.patch(f"{pods}/bare-0/status", {"status": {"message": "by its owner"}})
            stack.api.delete(f"{pods}/bare-0", grace_seconds=0)
            # a running GPU pod is nobody's hostage either: its owner may label it, and take it away
            stack.api.patch(f"{pods}/ours", {"metadata": {"labels": {"mine": "yes"}}})
            stack.api.delete(f"{pods}/ours", grace_seconds=0)
            seen.until(lambda now: not {"ours", "bare-0"} & set(pods_of(now)), seconds=10, what="both gone")
            eventually(lambda: not stack.leases(), seconds=10, what="the worker released the devices without the web")
        stack.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/many")


def test_our_pods_wait_while_gpuplane_is_away(stack: Stack, namespace: str) -> None:
    """CLAIM-7 failurePolicy Fail: pods and claims of ours are refused with the webhook's name, and pass once it is
    back.
    """
    stack.add_nodes(["away-ours"], gpus=4)
    pods, claims = f"/api/v1/namespaces/{namespace}/pods", f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"
    bodies = [
        pod("by-claim", namespace, claimed="one"),
        pod("by-native", namespace, resources={"nvidia.com/gpu": 1}),
        pod("by-share", namespace, resources={"kubernetes.io/gpu": 50}),
    ]
    stack.api.apply(claim("one", namespace))
    with Observer(stack.api, pods).watching() as seen:
        with without_web(stack):
            for body in bodies:
                told = why_refused(stack, pods, body)
                assert 'failed calling webhook "mutate.pods.gpu.scheduling"' in told
                assert "connection refused" in told
            assert 'failed calling webhook "validate.gpuclaims.gpu.scheduling"' in why_refused(
                stack, claims, claim("two", namespace)
            )
            # what the rules cannot harm passes: taking a claim away
            stack.api.delete(f"{claims}/one")
            # a result cannot be forged in the meantime
            stack.api.create(pods, plain("theirs", namespace))
            with pytest.raises(ApiRefused, match="failed calling webhook"):
                stack.api.patch(f"{pods}/theirs", {"metadata": {"annotations": {ALLOCATED: "away-ours:0"}}})
        stack.api.apply(claim("one", namespace))
        stack.add_pods(bodies)
        seen.until(bound("by-claim", "by-native", "by-share"), seconds=20, what="ours bound once gpuplane is back")
        stack.api.delete(f"{pods}/theirs", grace_seconds=0)


def test_a_controller_gets_its_pods_once_gpuplane_is_back(stack: Stack, namespace: str) -> None:
    """CLAIM-7 a Deployment of GPU pods made meanwhile tells why it has none, and has them all later without a hand."""
    stack.add_nodes(["away-later"], gpus=4)
    body = deployment("train", namespace, 3)
    body["spec"]["template"]["spec"] = pod("x", namespace, resources={"nvidia.com/gpu": 1})["spec"]
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        with without_web(stack):
            stack.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)

            def told() -> bool:
                sets = stack.api.items(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
                conditions = [one for found in sets for one in found["status"].get("conditions", [])]
                return any("failed calling webhook" in one.get("message", "") for one in conditions)

            eventually(told, seconds=20, what="the ReplicaSet says why it has no pods")
        # the ReplicaSet controller tries again by itself, after a back-off that doubles
        seen.until(count_bound(3), seconds=60, what="three pods bound")
        stack.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/train")
        seen.until(lambda now: not pods_of(now), seconds=30, what="all gone")


def test_a_hanging_gpuplane_delays_others_and_stops_nobody(stack: Stack, namespace: str) -> None:
    """DEV-11 a guard that takes the connection and never answers costs others' Bindings its time-out, and no more."""
    stack.add_nodes(["hanging"], gpus=2)
    with stock_scheduler(stack), Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.gpuplane.web.pause()
        try:
            stack.add_pods([plain(f"slow-{number}", namespace) for number in range(8)])
            took = seen.until(count_bound(8), seconds=30, what="eight pods of others bound")
        finally:
            stack.gpuplane.web.resume()
        assert took < 12  # the guard's five seconds, all of them waiting at the same time
        stack.add_pods([plain("quick", namespace)])
        assert seen.until(bound("quick"), seconds=20, what="a ninth bound once it answers") < 3


def test_the_stock_scheduler_does_not_get_gpu_pods(stack: Stack, namespace: str) -> None:
    """DEV-11 with gpuplane there its Binding is refused, and the pod's owner reads why; bound past an absent guard, the
    pod is told of.
    """
    stack.add_nodes(["stock"], gpus=2)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with stock_scheduler(stack), Observer(stack.api, pods).watching() as seen:
        stack.add_pods([pod("stray", namespace, resources={"nvidia.com/gpu": 1}, scheduler=STOCK)])
        seen.until(
            lambda now: "only gpuplane binds such pods" in said(pods_of(now).get("stray", {})),
            seconds=20,
            what="the refused Binding told in the pod's condition",
        )
        events = stack.api.kubectl("get", "events", "-n", namespace, "--field-selector", "involvedObject.name=stray")
        assert "the pod asks for devices; only gpuplane binds such pods" in events
        settled(stack)
        with without_web(stack):
            # the guard fails open, for otherwise the whole cluster would stand still; the stock scheduler tries again
            stack.api.patch(f"{pods}/stray", {"metadata": {"labels": {"again": "now"}}})
            seen.until(bound("stray"), seconds=60, what="bound past the absent guard")
        found = pods_of(seen)["stray"]
        uid = found["metadata"]["uid"]
        # it sees no device: the reference in its env points at an annotation that nobody wrote
        assert ALLOCATED not in (found["metadata"].get("annotations") or {})
        wanted = f"pod {namespace}/stray ({uid}) asks for devices and runs on stock, where gpuplane gave it none"

        def reported() -> bool:
            query = {"kind": "reconcile.difference", "namespace": namespace}
            answer = stack.gpuplane.rest.get("/api/v1/events/", params=query)
            return wanted in [one["message"] for one in answer.json()["results"]]

        eventually(reported, seconds=40, what="gpuplane tells of the pod")
        stack.api.delete(f"{pods}/stray", grace_seconds=0)


def test_strict_namespaces_are_guarded_while_gpuplane_is_away(stack: Stack, namespace: str) -> None:
    """DEV-11 where the chart is told so the API server keeps the rule by itself, for every way of asking; other pods
    are bound as ever.
    """
    stack.add_nodes(["strict"], gpus=2)
    values = stack.values(stack.doors)
    strict = {"matchLabels": {"cluster-tests/bindings": "strict"}}
    values["webhooks"] = {**values["webhooks"], "bindings": {"strictNamespaces": strict}}
    policy = chart.of_kinds(chart.render(values), "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert len(policy) == 2
    stack.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": strict["matchLabels"]}})
    stack.api.apply(claim("one", namespace), *policy)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    asking = [
        pod("by-claim", namespace, claimed="one", scheduler=STOCK),
        pod("by-native", namespace, resources={"nvidia.com/gpu": 1}, scheduler=STOCK),
        pod("by-share", namespace, resources={"kubernetes.io/gpu": 50}, scheduler=STOCK),
        pod(
            "by-init",
            namespace,
            scheduler=STOCK,
            initContainers=[{"name": "first", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        ),
    ]
    try:
        stack.add_pods(asking)
        names = [one["metadata"]["name"] for one in asking]
        with without_web(stack), Observer(stack.api, pods).watching() as seen:
            # the API server takes a new policy up within a second or two, and tells nobody
            for name in names:
                eventually(partial(_guarded, stack, pods, name), seconds=30, what=f"the policy guards {name}")
            with stock_scheduler(stack):
                seen.until(
                    # at one time or another: the scheduler says later of the same pod that others are tried on its GPU
                    lambda now: all(
                        any("only gpuplane binds such pods" in said(version) for version in now.named(name))
                        for name in names
                    ),
                    seconds=30,
                    what="each refused Binding told in the pod's condition",
                )
                stack.add_pods([plain(f"theirs-{number}", namespace) for number in range(5)])
                stack.api.create(pods, pod("zero", namespace, resources={"nvidia.com/gpu": 0}, scheduler=STOCK))
                seen.until(count_bound(6), seconds=OTHERS_SECONDS, what="other pods of the namespace bound")
                assert not any(pods_of(seen)[name]["spec"].get("nodeName") for name in names)
        # ours is not looked at, there or here
        stack.add_pods([pod("ours", namespace, resources={"nvidia.com/gpu": 1})])
        eventually(lambda: stack.get_pod(namespace, "ours")["spec"].get("nodeName"), seconds=20, what="ours bound")
    finally:
        stack.api.kubectl("delete", "-f", "-", given="\n---\n".join(map(json.dumps, policy)))
