"""What each process of the chart may do at a real API server: what its code does, and nothing that only another
does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.chart import NAMESPACE, RELEASE, RESERVATIONS, of_kinds, render
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.recorder import Json, applied, bare_server, rights


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlane]:
    """An API server for this module."""
    with bare_server() as made:
        yield made


LEASES = {f"{verb} leases.coordination.k8s.io in {NAMESPACE}" for verb in ("get", "list", "create", "update", "delete")}
RESERVES = {f"{verb} pods in {RESERVATIONS}" for verb in ("create", "get", "list", "watch", "delete")}
PATCHES = f"patch pods in {RESERVATIONS}"
"""Of gpuplane's processes because they may patch all pods."""
ALL = {"get pods", "list pods", "list nodes", "patch nodes", "patch nodes/status", *LEASES, *RESERVES, PATCHES}
"""Of web, worker and watch."""
BINDS = {"patch pods", "create pods/binding", "create pods/eviction", "get gpuclaims.gpu.scheduling"}
KINDS = ("gpuclaims", "gpugangs", "gpuqueues")
TOKENS = {"create tokenreviews.authentication.k8s.io"}
VOLUMES = {
    "get persistentvolumeclaims",
    "list persistentvolumeclaims",
    "list storageclasses.storage.k8s.io",
    "get resourceclaims.resource.k8s.io",
    "list resourceclaims.resource.k8s.io",
}
TRIGGERS = {f"{verb} pods in {NAMESPACE}" for verb in ("create", "delete")}
"""Trigger pods of growth, in gpuplane's namespace alone."""
MAY = {
    "web": {
        *ALL,
        *BINDS,
        *TOKENS,
        *VOLUMES,
        *(f"{verb} {kind}.gpu.scheduling" for verb in ("create", "patch", "delete") for kind in KINDS),
        *(f"get {kind}.gpu.scheduling" for kind in KINDS),
        "get customresourcedefinitions.apiextensions.k8s.io",
        "list customresourcedefinitions.apiextensions.k8s.io",
        "watch customresourcedefinitions.apiextensions.k8s.io",
        "create customresourcedefinitions.apiextensions.k8s.io",
    },
    "worker": {
        *ALL,
        *BINDS,
        "get nodes",
        "create events",
        *(f"patch {kind}.gpu.scheduling/status" for kind in KINDS),
        "list devices.scheduling.koordinator.sh",
        "create devices.scheduling.koordinator.sh",
        "patch devices.scheduling.koordinator.sh",
        "delete devices.scheduling.koordinator.sh",
        "list gpunodestatuses.gpu.scheduling",
        "create gpunodestatuses.gpu.scheduling",
        "delete gpunodestatuses.gpu.scheduling",
        "patch gpunodestatuses.gpu.scheduling/status",
        "list namespaces",
        "list mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "list validatingwebhookconfigurations.admissionregistration.k8s.io",
    },
    "watch": {
        *ALL,
        *VOLUMES,
        "watch pods",
        "patch pods",
        "create pods/eviction",
        "list events",
        "watch events",
        "create events",
        "get nodeclaims.karpenter.sh",
        *(f"{verb} {kind}.karpenter.sh" for verb in ("list", "watch") for kind in ("nodepools", "nodeclaims")),
        *TRIGGERS,
        "get nodes",
        "watch nodes",
        *(f"{verb} {kind}.gpu.scheduling" for verb in ("get", "list", "watch") for kind in KINDS),
    },
    "telemetry": TOKENS,
    "beat": set(),
    "agent": set(),
    "runner": set(),
    "reservation": {f"get pods in {RESERVATIONS}", PATCHES},
}
"""By process; `verb resource[.group][/subresource] [in namespace]`."""
NOBODY_MAY = {
    "create pods",
    "delete pods",
    "update pods",
    "patch pods/status",
    "create bindings",
    "patch persistentvolumeclaims",
    "patch resourceclaims.resource.k8s.io",
    "delete events",
    "delete nodes",
    "create nodes",
    *(f"{verb} {kind}.karpenter.sh" for verb in ("create", "delete", "patch") for kind in ("nodepools", "nodeclaims")),
    "update nodes",
    "get secrets",
    "list secrets",
    f"get secrets in {NAMESPACE}",
    f"list secrets in {NAMESPACE}",
    "create namespaces",
    "patch namespaces",
    "get configmaps",
    f"get configmaps in {NAMESPACE}",
    "patch customresourcedefinitions.apiextensions.k8s.io",
    "delete customresourcedefinitions.apiextensions.k8s.io",
    "create leases.coordination.k8s.io in kube-system",
    "update leases.coordination.k8s.io in kube-system",
    "get leases.coordination.k8s.io in kube-node-lease",
    "update leases.coordination.k8s.io",
    "create serviceaccounts/token",
    f"create serviceaccounts/token in {NAMESPACE}",
    "patch mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "patch validatingwebhookconfigurations.admissionregistration.k8s.io",
    "escalate clusterroles.rbac.authorization.k8s.io",
    "bind clusterroles.rbac.authorization.k8s.io",
    "impersonate users",
    "impersonate serviceaccounts",
    "patch gpunodestatuses.gpu.scheduling",
    "create pods/exec",
    "create pods/ephemeralcontainers",
    f"create pods in {NAMESPACE}",
    f"delete pods in {NAMESPACE}",
    f"update pods in {RESERVATIONS}",
    f"patch pods/status in {RESERVATIONS}",
    f"deletecollection pods in {RESERVATIONS}",
    f"get secrets in {RESERVATIONS}",
    f"create serviceaccounts/token in {RESERVATIONS}",
    f"create rolebindings.rbac.authorization.k8s.io in {RESERVATIONS}",
}
EVERY = sorted(NOBODY_MAY.union(*MAY.values()))


def account(process: str) -> tuple[str, str]:
    """Namespace and name of the ServiceAccount of a process."""
    if process == "reservation":
        return RESERVATIONS, "gpuplane-reservation"
    return NAMESPACE, RELEASE if process == "web" else f"{RELEASE}-{process}"


def allowed(api: Api, process: str, sentence: str) -> bool:
    """Whether the process' ServiceAccount may do it."""
    verb, what, *rest = sentence.split()
    named, _, subresource = what.partition("/")
    resource, _, group = named.partition(".")
    attributes = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
    attributes["namespace"] = rest[1] if rest else ""
    namespace, name = account(process)
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    user = f"system:serviceaccount:{namespace}:{name}"
    body = {"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}}
    answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def test_each_process_may_do_what_it_does_and_nothing_else(server: ControlPlane) -> None:
    """VIEW-6 every right of any process, and many that none has, asked for each of them."""
    values: Json = {"scheduler": {"enabled": False}, "telemetry": {"replicas": 1}, "agent": {"enabled": True}}
    with applied(server.api, rights(values)):
        found = {process: {one for one in EVERY if allowed(server.api, process, one)} for process in MAY}
    assert found == MAY


def test_only_web_has_the_rights_of_the_kube_scheduler_in_its_pod(server: ControlPlane) -> None:
    """VIEW-6 preemption deletes pods, and they are bound by another path: nobody but the pod with
    kube-scheduler may.
    """
    schedulers = {
        "delete pods",
        "create bindings",
        "patch pods/status",
        "get leases.coordination.k8s.io in kube-system",
    }
    with applied(server.api, rights({"telemetry": {"replicas": 1}})):
        found = {process: {one for one in schedulers if allowed(server.api, process, one)} for process in MAY}
    assert {"delete pods", "create bindings"} <= found["web"]
    assert {process: may for process, may in found.items() if process != "web"} == {
        process: set() for process in MAY if process != "web"
    }


def test_rules_name_no_more_than_the_table() -> None:
    """VIEW-6 no wildcard, and no verb on a resource that the table above does not ask for."""
    objects = render({"scheduler": {"enabled": False}, "telemetry": {"replicas": 1}, "rbac": {"aggregate": False}})
    for one in of_kinds(objects, "ClusterRole", "Role"):
        found = {
            f"{verb}"
            f" {resource.partition('/')[0]}{'.' + group if group else ''}{resource[len(resource.partition('/')[0]) :]}"
            for rule in one["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        process = one["metadata"]["labels"].get("app.kubernetes.io/component")
        namespace = one["metadata"].get("namespace")
        if namespace is None:
            want = MAY[process] - LEASES - RESERVES - TRIGGERS - {PATCHES}
        elif namespace == RESERVATIONS:
            sentences = RESERVES if one["metadata"]["name"] == RELEASE else MAY["reservation"]
            want = {sentence.removesuffix(f" in {RESERVATIONS}") for sentence in sentences}
        else:
            roles = TRIGGERS if one["metadata"]["name"].endswith("-growth") else LEASES
            want = {sentence.removesuffix(f" in {NAMESPACE}") for sentence in roles}
        assert found == want, one["metadata"]["name"]
