"""GpuClaims by kubectl and over REST: one object, two doors; both agree within seconds, and neither overwrites the
other unasked.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.controlplane.api import Api, ApiRefused, Observer
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.doors import Doors, meaning
from tests.cluster.waiting import bound, gone, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ANNOTATION = "example.org/why"


@pytest.fixture
def doors(stack: Stack, namespace: str) -> Doors:
    """Both doors."""
    return Doors(stack, namespace)


def test_what_kubectl_does_is_seen_over_rest(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-1 apply, edit, label, JSON patch and delete by kubectl; each seen over REST within seconds, object by
    object the same.
    """
    body = claim("by-hand", doors.namespace, devices={"count": 2, "policy": "contiguous"}, ttlSeconds=3600)
    body["metadata"]["labels"] = {"team": "one"}
    doors.kubectl("apply", "-f", "-", given=json.dumps(body))
    found = doors.agree("by-hand")
    assert found["spec"]["devices"] == {"count": 2, "policy": "contiguous", "type": "gpu", "policyStrict": False}
    listed = doors.stack.gpuplane.rest.get("/api/v1/claims/", params={"namespace": doors.namespace}).json()["results"]
    assert [one["metadata"]["name"] for one in listed] == ["by-hand"]

    body["spec"]["devices"]["count"] = 3
    del body["spec"]["ttlSeconds"]
    doors.kubectl("apply", "-f", "-", given=json.dumps(body))
    found = doors.agree("by-hand")
    assert "ttlSeconds" not in found["spec"]
    assert found["metadata"]["generation"] == 2

    monkeypatch.setenv("KUBE_EDITOR", "sed -i 's/count: 3/count: 4/; s/policy: contiguous/policy: spread/'")
    doors.kubectl("edit", "gpuclaim", "by-hand")
    found = doors.agree("by-hand")
    assert (found["spec"]["devices"]["count"], found["spec"]["devices"]["policy"]) == (4, "spread")

    doors.kubectl("label", "gpuclaim", "by-hand", "stage=test", "team-")
    steps = [
        {"op": "add", "path": "/metadata/labels/tier", "value": "gold"},
        {"op": "add", "path": "/metadata/annotations/example.org~1why", "value": "because"},
        {"op": "replace", "path": "/spec/devices/count", "value": 5},
    ]
    doors.kubectl("patch", "gpuclaim", "by-hand", "--type=json", "-p", json.dumps(steps))
    found = doors.agree("by-hand")
    assert found["metadata"]["labels"] == {"stage": "test", "tier": "gold"}
    assert found["metadata"]["annotations"][ANNOTATION] == "because"
    assert found["spec"]["devices"]["count"] == 5

    doors.kubectl("delete", "gpuclaim", "by-hand")
    doors.agree("by-hand")
    assert doors.get("by-hand").status_code == 404


def test_what_rest_does_is_seen_by_kubectl(doors: Doors) -> None:
    """CLAIM-1 POST, PUT, PATCH and DELETE; the API server has it when the answer comes, and the answer is what
    it has.
    """
    body = claim("by-rest", doors.namespace, devices={"count": 2})
    body["metadata"]["labels"] = {"team": "one"}
    answer = doors.post(body)
    assert answer.status_code == 201, answer.text
    assert meaning(answer.json()) == meaning(doors.stored("by-rest"))
    assert "by-rest" in doors.kubectl("get", "gpuclaims")
    again = doors.post(body)
    assert again.status_code == 409
    assert "already" in again.json()["detail"]

    made = answer.json()
    made["spec"]["devices"]["count"] = 3
    answer = doors.put("by-rest", made)
    assert answer.status_code == 200, answer.text
    assert meaning(answer.json()) == meaning(doors.stored("by-rest"))
    assert doors.kubectl("get", "gpuclaim", "by-rest", "-o", "jsonpath={.spec.devices.count}") == "3"

    answer = doors.patch(
        "by-rest", {"metadata": {"labels": {"team": None, "stage": "test"}}, "spec": {"ttlSeconds": 60}}
    )
    assert answer.status_code == 200, answer.text
    found = doors.stored("by-rest")
    assert meaning(answer.json()) == meaning(found)
    assert found is not None
    assert found["metadata"]["labels"] == {"stage": "test"}
    assert found["spec"]["ttlSeconds"] == 60

    assert doors.delete("by-rest").status_code == 204
    assert "NotFound" in doors.kubectl("get", "gpuclaim", "by-rest", refused=True)
    assert doors.delete("by-rest").status_code == 404


def test_conflicts_are_answered(doors: Doors) -> None:
    """CLAIM-1 whoever writes what he read before another wrote is told so, at both doors, and nothing is
    overwritten.
    """
    doors.kubectl("apply", "-f", "-", given=json.dumps(claim("shared", doors.namespace)))
    read = doors.agree("shared")
    over_rest = doors.get("shared").json()
    doors.kubectl("patch", "gpuclaim", "shared", "--type=merge", "-p", '{"spec": {"devices": {"count": 2}}}')

    over_rest["spec"]["devices"]["count"] = 7
    answer = doors.put("shared", over_rest)
    assert answer.status_code == 409, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert "read it again" in answer.json()["detail"]
    assert doors.agree("shared")["spec"]["devices"]["count"] == 2
    stale = {
        "metadata": {"resourceVersion": over_rest["metadata"]["resourceVersion"]},
        "spec": {"devices": {"count": 7}},
    }
    assert doors.patch("shared", stale).status_code == 409

    assert doors.patch("shared", {"spec": {"devices": {"count": 3}}}).status_code == 200
    read["spec"]["devices"]["count"] = 9
    told = doors.kubectl("replace", "-f", "-", given=json.dumps(read), refused=True)
    assert "the object has been modified" in told
    assert doors.agree("shared")["spec"]["devices"]["count"] == 3

    doors.kubectl("delete", "gpuclaim", "shared")
    doors.kubectl("apply", "-f", "-", given=json.dumps(claim("shared", doors.namespace)))
    answer = doors.put("shared", over_rest)
    assert answer.status_code == 409
    assert doors.agree("shared")["spec"]["devices"]["count"] == 1


def test_writers_at_both_endpoints_lose_nothing(doors: Doors) -> None:
    """CLAIM-1 forty labels by forty writers, half of them at each door, tried again on conflict as both advise: all are
    there.
    """
    doors.post(claim("crowd", doors.namespace))

    def over_rest(number: int) -> None:
        def done() -> bool:
            answer = doors.patch("crowd", {"metadata": {"labels": {f"rest-{number}": "x"}}})
            assert answer.status_code in {200, 409}, answer.text
            return answer.status_code == 200

        eventually(done, seconds=30, what="the label is written")

    def by_api(number: int) -> None:
        steps = {"metadata": {"labels": {f"api-{number}": "x"}}}
        doors.stack.api.patch(f"{doors.path}/crowd", steps)

    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(write, number) for number in range(20) for write in (over_rest, by_api)]
        for job in jobs:
            job.result()
    found = doors.agree("crowd")
    assert set(found["metadata"]["labels"]) == {f"{door}-{number}" for door in ("rest", "api") for number in range(20)}
    assert found["metadata"]["generation"] == 1


def test_what_rest_does_not_know_stays(doors: Doors) -> None:
    """CLAIM-1 finalizers and owners of a claim are not REST's, so its writes leave them; a claim held by a finalizer
    ends when that is off.
    """
    body = claim("kept", doors.namespace)
    body["metadata"] |= {
        "finalizers": ["cluster-tests/holds"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": _owner(doors)}],
    }
    doors.kubectl("create", "-f", "-", given=json.dumps(body))
    shown = doors.agree("kept")
    assert doors.patch("kept", {"spec": {"devices": {"count": 2}}}).status_code == 200
    shown = doors.get("kept").json()
    shown["metadata"]["labels"] = {"a": "b"}
    assert doors.put("kept", shown).status_code == 200
    found = doors.agree("kept")
    assert found["metadata"]["finalizers"] == ["cluster-tests/holds"]
    assert [one["name"] for one in found["metadata"]["ownerReferences"]] == ["owner"]
    assert doors.delete("kept").status_code == 204
    found = doors.stored("kept") or {}
    assert found["metadata"]["deletionTimestamp"]
    doors.kubectl("patch", "gpuclaim", "kept", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    doors.agree("kept")
    assert doors.get("kept").status_code == 404


def _owner(doors: Doors) -> str:
    path = f"/api/v1/namespaces/{doors.namespace}/configmaps"
    return str(doors.stack.api.create(path, {"metadata": {"name": "owner"}})["metadata"]["uid"])


REFUSED: list[Any] = [
    pytest.param({"count": 0}, "spec.devices.count", id="no device"),
    pytest.param({"count": 1, "core": 101}, "spec.devices.core", id="more than a device"),
    pytest.param({"count": 1, "memory": "much"}, "spec.devices.memory", id="no quantity"),
    pytest.param({"count": 1, "memory": "1Gi", "memoryRatio": 5}, "spec.devices", id="memory twice"),
    pytest.param({"count": 1, "policy": "best"}, "spec.devices.policy", id="no such policy"),
]


@pytest.mark.parametrize(("devices", "field"), REFUSED)
def test_both_endpoints_refuse_the_same(doors: Doors, devices: dict[str, Any], field: str) -> None:
    """CLAIM-3 a malformed claim is refused with its field, new or as a change of a good one; nothing of it is kept."""
    bad = claim("bad", doors.namespace, devices=devices)
    assert field in doors.kubectl("apply", "-f", "-", given=json.dumps(bad), refused=True)
    answer = doors.post(bad)
    assert answer.status_code in {400, 422}, answer.text
    assert field in answer.text
    assert doors.stored("bad") is None
    assert doors.shown("bad") is None
    doors.post(claim("good", doors.namespace))
    before = doors.agree("good")
    change = {"spec": {"devices": devices}}
    assert field in doors.kubectl("patch", "gpuclaim", "good", "--type=merge", "-p", json.dumps(change), refused=True)
    answer = doors.patch("good", change)
    assert answer.status_code in {400, 422}, answer.text
    assert meaning(doors.agree("good")) == meaning(before)


def test_status_is_gpuplanes(doors: Doors) -> None:
    """CLAIM-2 it follows the pods; what is written to it with the object is dropped, an editor may not write it, an
    administrator's is mended.
    """
    stack = doors.stack
    stack.add_nodes(["status-of-claims"], gpus=4)
    body = {**claim("watched", doors.namespace, devices={"count": 2}), "status": {"phase": "Invalid", "allocated": 99}}
    doors.kubectl("apply", "-f", "-", given=json.dumps(body))
    answer = doors.post({**claim("other", doors.namespace), "status": {"allocated": 99}})
    assert answer.status_code == 201
    assert answer.json()["status"]["allocated"] == 0

    def shows(phase: str, allocated: int) -> bool:
        told = (doors.stored("watched") or {}).get("status") or {}
        return (told.get("phase"), told.get("allocated")) == (phase, allocated)

    eventually(lambda: shows("Pending", 0), seconds=10, what="status of a claim that nobody uses")
    pods = f"/api/v1/namespaces/{doors.namespace}/pods"
    with Observer(stack.api, pods).watching() as seen:
        stack.add_pods([pod(f"user-{number}", doors.namespace, claimed="watched") for number in range(2)])
        seen.until(bound("user-0", "user-1"), seconds=20, what="both pods bound")
        eventually(lambda: shows("Allocated", 2), seconds=10, what="status of both")
        told = (doors.stored("watched") or {})["status"]
        assert {one["pod"] for one in told["allocations"]} == {"user-0", "user-1"}
        assert sorted(d["minor"] for one in told["allocations"] for d in one["devices"]) == [0, 1, 2, 3]
        shown = (doors.shown("watched") or {})["status"]
        assert (shown["phase"], shown["allocated"]) == ("Allocated", 2)
        with _editor(doors) as editor:
            with pytest.raises(ApiRefused) as refused:
                editor.patch(f"{doors.path}/watched/status", {"status": {"allocated": 0}})
            assert refused.value.code == 403
            editor.patch(
                f"{doors.path}/watched", {"metadata": {"labels": {"by": "editor"}}, "status": {"allocated": 0}}
            )
        assert shows("Allocated", 2)
        stack.api.patch(f"{doors.path}/watched/status", {"status": {"phase": "Pending", "allocated": 0}})
        stack.gpuplane.worker.restart()  # compares every claim when it starts, and every minute
        eventually(lambda: shows("Allocated", 2), seconds=30, what="the status mended")
        stack.api.delete(f"{pods}/user-0", grace_seconds=0)
        eventually(lambda: shows("Allocated", 1), seconds=10, what="status of the one that is left")
        stack.api.delete(f"{pods}/user-1", grace_seconds=0)
        seen.until(gone(["user-0", "user-1"]), seconds=10, what="both gone")
        eventually(lambda: shows("Pending", 0), seconds=10, what="status after both")


@contextmanager
def _editor(doors: Doors) -> Iterator[Api]:
    """A user with Kubernetes' own role `edit` in the namespace, to which the chart adds claims."""
    api, namespace = doors.stack.api, doors.namespace
    api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "editor"}})
    body = {
        "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": namespace}],
    }
    api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", body)
    made = doors.stack.plane.user(namespace, "editor")
    try:
        eventually(lambda: made.http.get(doors.path).status_code == 200, seconds=20, what="the editor's rights")
        yield made
    finally:
        made.close()


def test_an_edited_claim_counts_for_pods_that_wait(doors: Doors) -> None:
    """CLAIM-3 five devices are more than the node has: the pod waits, and is bound once the claim is edited, at either
    door.
    """
    stack = doors.stack
    stack.add_nodes(["edited-claims"], gpus=4)
    for name, edit in (
        (
            "by-kubectl",
            lambda: doors.kubectl(
                "patch", "gpuclaim", "by-kubectl", "--type=merge", "-p", '{"spec":{"devices":{"count":1}}}'
            ),
        ),
        ("by-rest", lambda: doors.patch("by-rest", {"spec": {"devices": {"count": 1}}})),
    ):
        doors.kubectl("apply", "-f", "-", given=json.dumps(claim(name, doors.namespace, devices={"count": 5})))
        with Observer(stack.api, f"/api/v1/namespaces/{doors.namespace}/pods").watching() as seen:
            stack.add_pods([pod(f"pod-{name}", doors.namespace, claimed=name)])
            seen.until(unschedulable(f"pod-{name}", saying="5"), seconds=20, what="five are too many")
            edit()
            seen.until(bound(f"pod-{name}"), seconds=15, what="bound after the edit")
    # and a claim that is deleted takes nobody's devices away
    doors.kubectl("delete", "gpuclaim", "by-kubectl")
    assert doors.delete("by-rest").status_code == 204
    for name in ("pod-by-kubectl", "pod-by-rest"):
        assert stack.get_pod(doors.namespace, name)["spec"]["nodeName"] == "edited-claims"


def test_what_happened_while_gpuplane_was_away(doors: Doors) -> None:
    """CLAIM-1 LEASE-6 claims changed and deleted meanwhile are known soon after it is back."""
    for name in ("stays", "changes", "goes"):
        doors.post(claim(name, doors.namespace))
    doors.stack.gpuplane.stop()
    try:
        doors.stack.api.delete(f"{doors.path}/goes")
        # past the webhook that validates claims, since gpuplane is away: labels are no business of it, but it hears of
        # every change
        with pytest.raises(ApiRefused, match="failed calling webhook"):
            doors.stack.api.patch(f"{doors.path}/changes", {"metadata": {"labels": {"a": "b"}}})
    finally:
        doors.stack.gpuplane.start()
    for name in ("stays", "changes", "goes"):
        doors.agree(name, seconds=20)
    assert doors.get("goes").status_code == 404


def test_the_api_server_away(doors: Doors) -> None:
    """CLAIM-1 writes over REST are answered 503 and change nothing; reads go on; everything agrees once it is back."""
    stack = doors.stack
    doors.post(claim("there", doors.namespace))
    doors.agree("there")
    shown = doors.get("there").json()
    stack.plane.apiserver.kill()
    try:
        for answer in (
            doors.post(claim("new", doors.namespace)),
            doors.put("there", {**shown, "spec": {"devices": {"count": 2}}}),
            doors.patch("there", {"spec": {"devices": {"count": 2}}}),
            doors.delete("there"),
        ):
            assert answer.status_code == 503, answer.text
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert "API server" in answer.json()["detail"]
        assert meaning(doors.shown("there")) == meaning(shown)
        assert doors.get("new").status_code == 404
    finally:
        stack.plane.apiserver.start()
    assert doors.patch("there", {"spec": {"devices": {"count": 2}}}).status_code == 200
    assert doors.agree("there")["spec"]["devices"]["count"] == 2
    assert doors.stored("new") is None
    doors.kubectl("apply", "-f", "-", given=json.dumps(claim("after", doors.namespace)))
    doors.agree("after", seconds=20)  # the watch finds its place again
