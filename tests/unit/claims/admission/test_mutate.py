from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.admission.confinement import is_confined
from claims.admission.mutate import mutate_pod
from kube.objects import Pod
from tests.unit.claims.admission.reviews import (
    CLAIM,
    CUDA,
    KOORD,
    NVIDIA,
    TRUST,
    US,
    USER,
    literal,
    operations,
    patched,
    pod,
    review,
)

ORDER = "CUDA_DEVICE_ORDER"
PCI = {"name": ORDER, "value": "PCI_BUS_ID"}


def ref(name: Any) -> Any:
    path = "metadata.annotations['gpu.scheduling/visible-devices']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def mutate(obj: Any, *, user: Any = USER, takeover: Any = False, **more: Any) -> Any:
    return mutate_pod(review(obj, user=user, **more), trust=TRUST, takeover=takeover)


def env_after(obj: Any, **more: Any) -> Any:
    """The env of every container, init containers first, after the patch; a second pass must change nothing."""
    response = mutate(obj, **more)
    assert response.allowed
    after = patched(obj, response)
    assert operations(mutate(after, **more)) == []
    spec = after["spec"]
    return [container.get("env") for container in (*spec.get("initContainers", ()), *spec["containers"])]


BOTH = [ref(CUDA), ref(NVIDIA)]
UNDEFAULTED = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": ref(name)["valueFrom"]["fieldRef"]["fieldPath"]}}}
    for name in (NVIDIA, CUDA)
]


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(pod(annotations=CLAIM), BOTH, id="a claim's gets both"),
        pytest.param(pod(requests={"nvidia.com/gpu": "1"}), BOTH, id="native gets both"),
        pytest.param(pod(requests={"koordinator.sh/gpu": "50"}), BOTH, id="koordinator gets both"),
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}), BOTH, id="KAI's get both"),
        pytest.param(pod(requests={"nvidia.com/gpumem": "1000"}), BOTH, id="HAMi's get both"),
        pytest.param(pod(requests={"kubernetes.io/rdma": "50"}), BOTH, id="a pod without GPUs sees none"),
        pytest.param(pod(annotations=CLAIM, env=[]), BOTH, id="empty env"),
        pytest.param(pod(annotations=CLAIM, env=[literal("A", "1")]), [literal("A", "1"), *BOTH], id="other env stays"),
        pytest.param(pod(annotations=CLAIM, env=[literal(CUDA, "7")]), BOTH, id="the user's own is replaced"),
        pytest.param(
            pod(annotations=CLAIM, env=[literal(NVIDIA, "all"), literal("A", "1")]),
            [ref(NVIDIA), literal("A", "1"), ref(CUDA)],
            id="the user's NVIDIA_VISIBLE_DEVICES too",
        ),
        pytest.param(
            pod(annotations=CLAIM, env=[literal(CUDA, "1"), literal("A", "1"), ref(CUDA), literal(CUDA, "2")]),
            [ref(CUDA), literal("A", "1"), ref(NVIDIA)],
            id="several of the user's own",
        ),
        pytest.param(
            pod(annotations=CLAIM, env=[ref(NVIDIA), literal(NVIDIA, "all"), ref(CUDA)]),
            [ref(NVIDIA), ref(CUDA)],
            id="the user's own behind our reference",
        ),
        pytest.param(
            pod(annotations=CLAIM, env=[literal(ORDER, "FASTEST_FIRST")]),
            [literal(ORDER, "FASTEST_FIRST"), *BOTH],
            id="UUIDs have no order",
        ),
        pytest.param(
            pod(annotations=CLAIM, env=[ref(CUDA), PCI]),
            [ref(CUDA), PCI, ref(NVIDIA)],
            id="as an earlier version left it",
        ),
        pytest.param(
            pod(annotations=CLAIM, env=[{"name": CUDA, "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}]),
            BOTH,
            id="another reference",
        ),
        pytest.param(pod(annotations=CLAIM, env=UNDEFAULTED), UNDEFAULTED, id="our references before defaulting"),
    ],
)
def test_env_of_a_pod_that_is_not_scheduled_yet(obj, want):
    """CLAIM-7 both variables are downward-API references to the annotation that the Binding carries; twice gives no
    second patch.
    """
    assert env_after(obj) == [want]


def test_every_container_and_init_container():
    """CLAIM-7 every container and init container gets it, DEV-7 NVIDIA_VISIBLE_DEVICES as well."""
    obj = pod(
        requests={"nvidia.com/gpu": "1"},
        init=[{"name": "a"}, {"name": "b", "restartPolicy": "Always", "env": [literal("X", "1")]}],
    )
    obj["spec"]["containers"].append({"name": "second"})
    both = [ref(CUDA), ref(NVIDIA)]
    assert env_after(obj) == [both, [literal("X", "1"), *both], both, both]


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(
            pod(annotations=CLAIM | {"gpu.scheduling/allocated": "node-a:0,1"}),
            [literal(CUDA, "0,1"), PCI],
            id="the source's example",
        ),
        pytest.param(
            pod(
                annotations=CLAIM
                | {"gpu.scheduling/allocated": "node-a:2,3", "gpu.scheduling/visible-devices": "GPU-2,GPU-3"}
            ),
            [literal(CUDA, "GPU-2,GPU-3"), literal(NVIDIA, "GPU-2,GPU-3")],
            id="a claim's, UUIDs",
        ),
        pytest.param(
            pod(
                annotations=CLAIM | {"gpu.scheduling/allocated": "node-a:0", "gpu.scheduling/visible-devices": "GPU-0"},
                env=[literal(NVIDIA, "all")],
            ),
            [literal(NVIDIA, "GPU-0"), literal(CUDA, "GPU-0")],
            id="the env value that is carried already",
        ),
        pytest.param(
            pod(annotations=CLAIM | {"gpu.scheduling/allocated": "node-a:2"}, env=[literal(NVIDIA, "2")]),
            [literal(CUDA, "2"), PCI],
            id="host indices stand alone",
        ),
        pytest.param(
            pod(
                annotations={"gpu.scheduling/allocated": "node-a:0", "gpu.scheduling/visible-devices": "GPU-0"},
                requests={"nvidia.com/gpu": "1"},
            ),
            [literal(CUDA, "GPU-0"), literal(NVIDIA, "GPU-0")],
            id="native, UUIDs",
        ),
    ],
)
def test_env_of_a_pod_whose_devices_are_known(obj, want):
    """CLAIM-7 a pod that already carries its allocation, from us, gets the literal value; of host indices CUDA's
    variable alone.
    """
    assert env_after(obj, user=US) == [want]


def hami_pod(*amounts: dict[str, str], names: Any = ("a", "b", "c")) -> Any:
    listed = [{"name": name, "resources": {"limits": dict(one)}} for name, one in zip(names, amounts, strict=False)]
    return {"metadata": {"name": "p"}, "spec": {"containers": listed}}


def paths(obj: Any) -> list[Any]:
    """Container by container, the annotations that its variables come from."""
    return [
        {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in entries} for entries in env_after(obj)
    ]


def of(container: str = "") -> dict[str, str]:
    path = f"metadata.annotations['gpu.scheduling/visible-devices{container}']"
    return {CUDA: path, NVIDIA: path}


SMALL = {"nvidia.com/gpumem": "1000"}


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(hami_pod(SMALL, {}), [of(), of()], id="one asks: all see the pod's devices"),
        pytest.param(hami_pod(SMALL, {}, SMALL), [of(".a"), of(), of(".c")], id="two ask: each sees its own"),
        pytest.param(
            hami_pod(SMALL, SMALL, names=("n" * 48, "b")), [of(), of(".b")], id="a name too long for an annotation"
        ),
        pytest.param(
            hami_pod(SMALL, SMALL | {"nvidia.com/gpucores": "101"}), [of(), of()], id="refused by validate: as one"
        ),
    ],
)
def test_containers_planned_one_by_one_see_their_own_devices(obj, want):
    """CLAIM-7 DEV-2 a container that asked for itself in HAMi's words sees no device of another container."""
    assert paths(obj) == want


def test_init_containers_see_their_own_devices():
    """CLAIM-7 DEV-2 whatever a container after them asks for; one that asks for nothing sees the pod's."""
    obj = hami_pod(SMALL, names=("serve",))
    large = {"nvidia.com/gpumem": "9000"}
    obj["spec"]["initContainers"] = [
        {"name": "convert", "resources": {"limits": dict(large)}},
        {"name": "quiet"},
        {"name": "cache", "restartPolicy": "Always", "resources": {"limits": dict(SMALL)}},
    ]
    assert paths(obj) == [of(".convert"), of(), of(".cache"), of(".serve")]
    obj["spec"]["initContainers"] = [{"name": "convert", "resources": {"limits": dict(SMALL)}}]
    assert paths(obj) == [of(".convert"), of(".serve")]


def test_pods_of_another_dialects_scheduler_are_left_alone():
    """DEV-11 KAI's own scheduler gives its pods their env, unless the namespace was taken over."""
    served = pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler")
    assert operations(mutate(served)) == []
    assert {"op": "add", "path": "/spec/schedulerName", "value": "gpu-scheduler"} in operations(
        mutate(served, takeover=True)
    )
    assert operations(mutate(pod(annotations={"gpu-fraction": "0.5"}, schedulerName="gpu-scheduler"))) != []


@pytest.mark.parametrize("user", [USER, KOORD, ""])
def test_a_planted_allocation_is_not_believed(user):
    """CLAIM-7 the literal value is for gpuplane's own requests only."""
    obj = pod(annotations=CLAIM | {"gpu.scheduling/allocated": "node-a:0,1"})
    assert env_after(obj, user=user) == [BOTH]


def test_our_own_malformed_allocation_is_refused():
    for annotations in (
        {"gpu.scheduling/allocated": "x"},
        {"gpu.scheduling/allocated": "n:0", "gpu.scheduling/visible-devices": "a b"},
    ):
        response = mutate(pod(annotations=CLAIM | annotations), user=US)
        assert not response.allowed
        assert "gpu.scheduling/allocated" in response.status.message


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(pod(), id="no devices"),
        pytest.param(pod(env=[literal(CUDA, "0")]), id="no devices but env"),
        pytest.param(pod(requests={"cpu": "1", "nvidia.com/gpu": "0"}), id="quantity 0"),
        pytest.param({"metadata": {"annotations": CLAIM}}, id="no spec: refused by the API server"),
        pytest.param({"metadata": 5, "spec": {}}, id="malformed, not ours"),
        pytest.param({"spec": {"containers": [{"env": 5}]}}, id="malformed env, not ours"),
        pytest.param([], id="a list"),
        pytest.param(None, id="null"),
    ],
)
@pytest.mark.parametrize("takeover", [False, True])
def test_other_pods_are_untouched(obj, takeover):
    """CLAIM-7 a pod that is not ours passes as it is."""
    response = mutate(obj, takeover=takeover)
    assert response.allowed
    assert operations(response) == []


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE"},
        {"kind": "Binding", "sub_resource": "binding"},
        {"sub_resource": "status"},
    ],
    ids=["an update", "a deletion", "a Binding", "a status"],
)
def test_other_operations_are_untouched(more):
    assert operations(mutate(pod(annotations=CLAIM), **more)) == []


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({"metadata": {"annotations": CLAIM}, "spec": {"containers": 5}}, id="containers is a number"),
        pytest.param({"metadata": {"annotations": CLAIM}, "spec": {"containers": [{"env": "x"}]}}, id="env is text"),
        pytest.param(
            {"spec": {"containers": [{"env": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}, id="by its resource"
        ),
        pytest.param({"metadata": {"annotations": {"gpu.scheduling/claim": 5}}}, id="annotation is a number"),
        pytest.param({"metadata": {"labels": {"runai-gpu-group": []}}}, id="by a result label"),
    ],
)
def test_a_malformed_pod_of_ours_is_refused(obj):
    """CLAIM-3 a malformed pod that is ours is refused with a message."""
    response = mutate(obj)
    assert not response.allowed
    assert response.status.message.startswith("the pod is malformed: ")


@pytest.mark.parametrize(
    ("obj", "takeover", "want"),
    [
        pytest.param(pod(annotations=CLAIM), False, None, id="not labelled"),
        pytest.param(pod(annotations=CLAIM), True, "gpu-scheduler", id="labelled"),
        pytest.param(
            pod(annotations=CLAIM, schedulerName="default-scheduler"), True, "gpu-scheduler", id="default-scheduler"
        ),
        pytest.param(
            pod(requests={"nvidia.com/gpu": 1}, schedulerName="koord-scheduler"), True, "gpu-scheduler", id="another's"
        ),
        pytest.param(pod(annotations=CLAIM, schedulerName="gpu-scheduler"), True, "gpu-scheduler", id="ours already"),
        pytest.param(
            pod(annotations=CLAIM, nodeName="n1"), True, "gpu-scheduler", id="placed by its user, for the guard"
        ),
        pytest.param(
            pod(annotations={**CLAIM, "kubernetes.io/config.mirror": "1"}, nodeName="n1"), True, None, id="of a file"
        ),
        pytest.param(pod(schedulerName="default-scheduler"), True, "default-scheduler", id="not ours"),
        pytest.param(
            pod(requests={"nvidia.com/gpu": 1, "koordinator.sh/gpu": 100}, nodeName="n1"),
            True,
            "gpu-scheduler",
            id="breaks a rule",
        ),
        pytest.param(
            pod(requests={"nvidia.com/gpu": 1, "koordinator.sh/gpu": 100}), False, None, id="breaks a rule elsewhere"
        ),
    ],
)
def test_the_schedulers_name(obj, takeover, want):
    """CLAIM-7 schedulerName is rewritten only in namespaces labelled for takeover."""
    response = mutate(obj, takeover=takeover)
    after = patched(obj, response)
    assert after["spec"].get("schedulerName") == want
    assert operations(mutate(after, takeover=takeover)) == []


def test_a_scheduler_that_places_pods_itself():
    """DEV-11 a trusted one keeps its name in what it places: KAI's reservation pods, say."""
    placed = pod(requests={"nvidia.com/gpu": 1}, nodeName="n1", schedulerName="koord-scheduler")
    after = patched(placed, mutate(placed, user=KOORD, takeover=True))
    assert after["spec"]["schedulerName"] == "koord-scheduler"


def test_a_dry_run_gets_the_same_answer():
    obj = pod(annotations=CLAIM)
    assert operations(mutate(obj, dry_run=True)) == operations(mutate(obj))


ENTRY = st.sampled_from([CUDA, NVIDIA, ORDER, "A"]).flatmap(
    lambda name: st.sampled_from(
        [literal(name, "0"), literal(name, ""), ref(name), {"name": name}, {"name": name, "valueFrom": {}}]
    )
)
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": st.just("c")}, optional={"env": st.none() | st.lists(ENTRY, max_size=5)}),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200)
@given(
    CONTAINERS,
    CONTAINERS,
    st.sampled_from([CLAIM, CLAIM | {"gpu.scheduling/allocated": "n:1,2"}]),
    st.sampled_from([USER, US]),
    st.booleans(),
)
def test_after_the_patch_no_other_value_is_left(containers, init, annotations, user, takeover):
    """CLAIM-7 whatever env a pod brings, each variable is there once with our value, and a second pass changes
    nothing.
    """
    obj = {"metadata": {"annotations": annotations}, "spec": {"containers": containers, "initContainers": init}}
    arguments = {"user": user, "takeover": takeover}
    after = patched(obj, mutate(obj, **arguments))
    assert operations(mutate(after, **arguments)) == []
    known = user == US and "gpu.scheduling/allocated" in annotations
    for container in (*after["spec"]["containers"], *after["spec"]["initContainers"]):
        by_name = {
            name: [entry for entry in container["env"] if entry["name"] == name] for name in (CUDA, NVIDIA, ORDER)
        }
        assert by_name[CUDA] == [literal(CUDA, "1,2") if known else ref(CUDA)]
        assert by_name[NVIDIA] == ([] if known else [ref(NVIDIA)])
        assert by_name[ORDER] == [PCI] or not known


def test_the_container_that_uses_kais_fraction_alone_sees_it():
    """SHARE-1 CLAIM-7 `gpu-fraction-container-name`: other containers, init containers too, see no GPU at all."""
    manifest = {
        "metadata": {
            "name": "p",
            "annotations": {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"},
        },
        "spec": {
            "initContainers": [{"name": "load"}],
            "containers": [{"name": "train"}, {"name": "logs", "env": [literal(NVIDIA, "all")]}],
        },
    }
    after = patched(manifest, mutate_pod(review(manifest), trust=TRUST))
    env = {
        one["name"]: {entry["name"]: entry.get("value") for entry in one["env"]}
        for one in (*after["spec"]["initContainers"], *after["spec"]["containers"])
    }
    assert env["load"] == env["logs"] == {CUDA: "-1", NVIDIA: "void"}
    assert env["train"] == {CUDA: None, NVIDIA: None}, "by downward API"
    assert operations(mutate_pod(review(after), trust=TRUST)) == []
    assert is_confined(msgspec.convert(after, Pod))
