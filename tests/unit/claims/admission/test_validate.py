from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claims import kinds
from claims.admission.mutate import mutate_pod
from claims.admission.trust import Trust
from claims.admission.validate_binding import validate_binding
from claims.admission.validate_manifest import validate_manifest
from claims.admission.validate_pod import validate_pod
from kube.objects import Pod
from tests.unit.claims.admission.reviews import KOORD, US, USER, pod, review

HAMI_USER = "system:serviceaccount:kube-system:hami-scheduler"
TRUST = Trust(own=frozenset({US}), schedulers={"koordinator": frozenset({KOORD}), "hami": frozenset({HAMI_USER})})
CLAIM = {"gpu.scheduling/claim": "train"}
RESULTS = [
    ({"gpu.scheduling/allocated": "n1:0"}, {US}),
    ({"gpu.scheduling/visible-devices": "0"}, {US}),
    ({"gpu.scheduling/amounts": "{}"}, {US}),
    ({"scheduling.koordinator.sh/device-allocated": "{}"}, {US, KOORD}),
    ({"gpu.scheduling/visible-devices.main": "GPU-1"}, {US}),
    ({"hami.io/vgpu-node": "n1"}, {US, HAMI_USER}),
    ({"hami.io/vgpu-devices-allocated": "x"}, {US, HAMI_USER}),
    ({"hami.io/vgpu-devices-to-allocate": "x"}, {US, HAMI_USER}),
    ({"hami.io/bind-phase": "success"}, {US, HAMI_USER}),
    ({"run.ai/reserve_for_gpu_index": "GPU-0"}, {US}),
]
LABELS = [({"runai-gpu-group": "g"}, {US}), ({"runai-gpu-group/g": "g"}, {US})]
PLANTED = [
    pytest.param({part: keys}, trusted, id=next(iter(keys)))
    for part, listed in (("annotations", RESULTS), ("labels", LABELS))
    for keys, trusted in listed
]
EVERYONE = [USER, "", US, KOORD, HAMI_USER]


def check(obj: Any, **more: Any) -> Any:
    return validate_pod(review(obj, **more), trust=TRUST)


@pytest.mark.parametrize("user", EVERYONE)
@pytest.mark.parametrize(("planted", "trusted"), PLANTED)
def test_a_result_is_written_by_its_scheduler_only(planted, trusted, user):
    """CLAIM-7 nobody but gpuplane, and the scheduler of that dialect, sets, changes or removes a result."""
    clean, dirty = pod(), pod(**planted)
    other = pod(**{part: dict.fromkeys(keys, "other") for part, keys in planted.items()})
    writes = [
        check(dirty, user=user),
        check(dirty, old=clean, operation="UPDATE", user=user),
        check(other, old=dirty, operation="UPDATE", user=user),
        check(clean, old=dirty, operation="UPDATE", user=user),
        check(dirty, old=clean, operation="UPDATE", user=user, sub_resource="status"),
    ]
    assert [response.allowed for response in writes] == [user in trusted] * len(writes)
    for response in writes:
        assert response.allowed or next(iter(next(iter(planted.values())))) in response.status.message
        assert response.allowed or response.status.code == 403
    assert check(dirty, old=dirty, operation="UPDATE", user=user).allowed
    assert check(dirty, operation="DELETE", user=user).allowed


def test_users_keep_their_own_annotations():
    mine = {"hami.io/gpu-scheduler-policy": "binpack", "gpu.scheduling/claim": "train", "note": "x"}
    assert check(pod(annotations=mine)).allowed
    assert check(pod(annotations={"note": "y"}), old=pod(annotations=mine), operation="UPDATE").allowed


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(pod(), "", id="not ours"),
        pytest.param(pod(annotations=CLAIM), "", id="a claim that may come later"),
        pytest.param(pod(requests={"nvidia.com/gpu": 2}), "", id="native"),
        pytest.param(
            pod(requests={"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory": "4Gi"}), "", id="core and memory"
        ),
        pytest.param(
            pod(annotations={"gpu.scheduling/claim": "a/b"}), "(rule claim-name)", id="another namespace's claim"
        ),
        pytest.param(pod(annotations={"gpu.scheduling/claim": "A"}), "(rule claim-name)", id="no DNS name"),
        pytest.param(pod(requests={"kubernetes.io/gpu-core": 50}), "(rule gpu-core-alone)", id="core alone"),
        pytest.param(pod(requests={"kubernetes.io/gpu": 150}), "(rule multiple-of-100)", id="one and a half"),
        pytest.param(pod(requests={"kubernetes.io/gpu-memory": "4GB"}), "did you mean 4G or 4Gi?", id="GB"),
        pytest.param(pod(requests={"nvidia.com/gpu": "0.5"}), "not a whole number", id="half a native GPU"),
        pytest.param(pod(annotations=CLAIM, requests={"nvidia.com/gpu": 1}), "(rule two-dialects)", id="two dialects"),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.5"}, requests={"nvidia.com/gpu": 1}),
            "(rule two-dialects)",
            id="KAI and native",
        ),
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}), "", id="KAI fraction"),
        pytest.param(pod(annotations={"gpu-fraction": "1.5"}), "(rule kai-fraction)", id="KAI, more than one"),
        pytest.param({"metadata": {"annotations": CLAIM}, "spec": 5}, "the pod is malformed", id="malformed, ours"),
        pytest.param({"metadata": 5}, "", id="malformed, not ours"),
    ],
)
def test_invalid_mixes_are_refused_at_admission(obj, want):
    """DEV-3 what breaks the rules is refused when the pod is created, with the rule; a missing claim is not."""
    response = check(obj)
    assert response.allowed is (want == "")
    if want:
        assert want in response.status.message
        assert response.status.code == 422
    assert check(obj, dry_run=True) == response


@pytest.mark.parametrize(
    ("obj", "user", "want"),
    [
        pytest.param(pod(annotations=CLAIM, nodeName="n1"), USER, False, id="by claim"),
        pytest.param(pod(requests={"nvidia.com/gpu": 1}, nodeName="n1"), USER, False, id="native"),
        pytest.param(pod(requests={"koordinator.sh/gpu": 50}, nodeName="n1"), KOORD, True, id="by a trusted scheduler"),
        pytest.param(pod(requests={"nvidia.com/gpu": 1}, nodeName="n1"), US, True, id="by us"),
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}, nodeName="n1"), USER, False, id="KAI"),
        pytest.param(pod(requests={"nvidia.com/gpu": 0}, nodeName="n1"), USER, True, id="quantity 0"),
        pytest.param(pod(nodeName="n1"), USER, True, id="not ours"),
        pytest.param(
            pod(annotations={"kubernetes.io/config.mirror": "x"}, requests={"nvidia.com/gpu": 1}, nodeName="n1"),
            "system:node:n1",
            True,
            id="the image of a static pod",
        ),
    ],
)
def test_nobody_chooses_the_node_of_a_device_pod(obj, user, want):
    """DEV-11 a pod that names its node passes every scheduler by and needs no Binding."""
    response = check(obj, user=user)
    assert response.allowed is want
    if not want:
        assert response.status.code == 403
        assert "spec.nodeName" in response.status.message
    assert check(obj, old=obj, operation="UPDATE", user=user).allowed


def test_hamis_rules_hold_unless_the_pod_is_for_hami():
    """DEV-3 what breaks a rule of HAMi's is refused; in a pod for HAMi's own scheduler it is a warning."""
    wrong = pod(requests={"nvidia.com/gpucores": 101})
    response = check(wrong)
    assert (response.allowed, response.status.code) == (False, 422)
    assert "rule hami-over-100" in response.status.message
    wrong["spec"]["schedulerName"] = "hami-scheduler"
    response = check(wrong)
    assert (response.allowed, response.warnings) == (
        True,
        ["nvidia.com/gpucores is for each device, so it is at most 100"],
    )
    assert check(pod(requests={"nvidia.com/gpucores": 10})).allowed


@pytest.mark.parametrize(
    ("scheduler", "want"),
    [("kai-scheduler", True), ("gpu-scheduler", False), ("default-scheduler", False), ("", False)],
)
def test_rules_of_ours_are_not_anothers(scheduler, want):
    """DEV-11 what another dialect's own scheduler serves passes with a warning, although we would refuse it."""
    response = check(pod(annotations={"gpu-fraction": "0.125"}, schedulerName=scheduler))
    assert response.allowed is want
    told = " ".join(response.warnings or []) if want else response.status.message
    assert "whole percents" in told
    assert check(pod(requests={"nvidia.com/gpu": "0.5"}, schedulerName=scheduler)).allowed is False


def test_an_update_does_not_judge_the_mix_again():
    bad = pod(requests={"kubernetes.io/gpu-core": 50})
    assert check(bad, old=bad, operation="UPDATE").allowed


def claim(**devices: Any) -> Any:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "train"},
        "spec": {"devices": devices},
    }


@pytest.mark.parametrize(
    ("obj", "more", "want"),
    [
        pytest.param(claim(count=1), {}, "", id="good"),
        pytest.param(claim(count=0), {}, "spec.devices.count must be 1 to 1000 (rule range)", id="0 devices"),
        pytest.param(claim(count=1, cores=5), {}, "spec.devices.cores is not a field of GpuClaim", id="misspelt"),
        pytest.param(claim(count=1, memory="1Gi", memoryRatio=1), {}, "(rule memory-and-ratio)", id="both memories"),
        pytest.param(claim(count=1) | {"metadata": {"generateName": "t-"}}, {}, "", id="name not generated yet"),
        pytest.param(claim(count=2), {"operation": "UPDATE", "old": claim(count=1)}, "", id="the spec may change"),
        pytest.param(
            claim(count=0), {"operation": "UPDATE", "old": claim(count=1)}, "(rule range)", id="but not to nonsense"
        ),
        pytest.param(
            claim(count=0),
            {"operation": "UPDATE", "old": claim(count=0)},
            "",
            id="a malformed one can lose its finalizer",
        ),
        pytest.param(claim(count=0), {"operation": "UPDATE", "old": None}, "(rule range)", id="no old object"),
        pytest.param(claim(count=0), {"operation": "DELETE"}, "", id="and be deleted"),
        pytest.param(claim(count=0), {"operation": "UPDATE", "sub_resource": "status"}, "", id="status"),
        pytest.param(None, {}, "the manifest must be an object", id="null"),
        pytest.param([], {}, "the manifest must be an object", id="a list"),
    ],
)
def test_claims_are_checked_with_field_and_rule(obj, more, want):
    """CLAIM-3 a malformed GpuClaim is refused with the field and the rule."""
    response: Any = validate_manifest(kinds.CLAIM, review(obj, kind="GpuClaim", **more))
    assert response.allowed is (want == "")
    if want:
        assert want in response.status.message


def bind(target: Any, *, user: Any = USER, metadata: Any = None, everywhere: bool = True) -> Any:
    binding = {"metadata": {"name": "p", **(metadata or {})}, "target": {"name": "n1"}}
    known = None if target is None else msgspec.convert(target, Pod)
    request = review(binding, kind="Binding", sub_resource="binding", user=user)
    return validate_binding(request, pod=known, trust=TRUST, everywhere=everywhere)


KAI, HAMI = pod(annotations={"gpu-fraction": "0.5"}), pod(requests={"nvidia.com/gpucores": 10})


@pytest.mark.parametrize(
    ("target", "user", "want"),
    [
        pytest.param(pod(annotations=CLAIM), USER, False, id="a claim's pod by somebody"),
        pytest.param(pod(annotations=CLAIM), US, True, id="by us"),
        pytest.param(
            pod(requests={"nvidia.com/gpu": 1}), "system:kube-scheduler", False, id="a native pod by kube-scheduler"
        ),
        pytest.param(pod(requests={"koordinator.sh/gpu": 50}), KOORD, False, id="a koordinator pod by koordinator"),
        pytest.param(pod(requests={"koordinator.sh/gpu-core": 50}), USER, False, id="an invalid pod of ours"),
        pytest.param(HAMI, HAMI_USER, True, id="HAMi's pod by HAMi"),
        pytest.param(HAMI, USER, False, id="HAMi's pod by somebody"),
        pytest.param(KAI, HAMI_USER, False, id="KAI's pod by HAMi"),
        pytest.param(pod(), USER, True, id="not ours"),
        pytest.param(pod(requests={"nvidia.com/gpu": 0}), USER, True, id="quantity 0"),
        pytest.param(None, USER, True, id="an unknown pod"),
    ],
)
def test_only_gpuplane_binds_device_pods(target, user, want):
    """CLAIM-7 a pod that asks for devices is bound by gpuplane alone, so it never runs unconfined."""
    response = bind(target, user=user)
    assert response.allowed is want
    assert want or response.status.code == 403


def test_which_gpus_and_whichever_the_kubelet_chooses_contradict():
    """DEV-3 DEV-8 refused with the rule; each by itself is fine."""
    both = pod(requests={"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "H100"})
    both["spec"]["nodeSelector"] = {"gpu.scheduling/mode": "device-plugin"}
    response = check(both)
    assert (response.allowed, "rule kubelet-chooses" in response.status.message) == (False, True)
    del both["metadata"]["annotations"]
    assert check(both).allowed
    with_nic = pod(requests={"nvidia.com/gpu": 1, "koordinator.sh/rdma": 50})
    assert check(with_nic).allowed
    assert check(pod(requests={"nvidia.com/gpu": 1}, annotations={"nvidia.com/use-gputype": "H100"})).allowed


def named(target: Any, scheduler: str) -> Any:
    return {**target, "spec": {**target["spec"], "schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("target", "want"),
    [
        pytest.param(pod(annotations=CLAIM), False, id="a claim's pod"),
        pytest.param(named(pod(requests={"nvidia.com/gpu": 1}), "gpu-scheduler"), False, id="names our scheduler"),
        pytest.param(pod(requests={"nvidia.com/gpu": 1}), True, id="by nvidia.com/gpu for whoever"),
        pytest.param(named(KAI, "kai-scheduler"), True, id="KAI's for KAI"),
        pytest.param(named(pod(), "gpu-scheduler"), True, id="asks for nothing"),
    ],
)
def test_while_a_cluster_is_taken_over_others_go_on(target, want):
    """DEV-11 the guard looks only at what is meant for gpuplane; a planted result is refused all the same."""
    assert bind(target, everywhere=False).allowed is want
    planted = {"annotations": {"gpu.scheduling/allocated": "n1:0"}}
    assert not bind(target, everywhere=False, metadata=planted).allowed


@pytest.mark.parametrize("target", [None, pod()], ids=["no target", "a pod"])
@pytest.mark.parametrize("user", EVERYONE)
@pytest.mark.parametrize(("planted", "trusted"), PLANTED)
def test_a_binding_cannot_plant_a_result(planted, trusted, user, target):
    """CLAIM-7 a Binding's annotations are merged into the pod without pod admission, so they are guarded too."""
    assert bind(target, user=user, metadata=planted).allowed is (user in trusted)


def test_a_malformed_binding():
    for target, want in ((pod(annotations=CLAIM), False), (pod(), True)):
        assert bind(target, metadata={"annotations": 5}).allowed is want


def test_other_kinds_pass():
    request = review({"metadata": {}}, kind="Eviction", sub_resource="eviction")
    assert validate_pod(request, trust=TRUST).allowed
    assert validate_binding(request, pod=None, trust=TRUST).allowed
    assert validate_manifest(kinds.CLAIM, request).allowed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "annotations",
                    "labels",
                    "gpu.scheduling/claim",
                    "gpu.scheduling/allocated",
                    "containers",
                    "initContainers",
                    "resources",
                    "limits",
                    "nvidia.com/gpu",
                    "env",
                    "name",
                    "devices",
                    "count",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(JSON, JSON, st.sampled_from(["CREATE", "UPDATE", "DELETE", ""]), st.sampled_from([USER, US]))
def test_no_object_raises(obj, old, operation, user):
    """CLAIM-3 whatever JSON comes, every verdict answers, with the request's uid and, refusing, a message."""
    for kind in ("Pod", "GpuClaim", "Binding"):
        request = review(obj, old=old, operation=operation, kind=kind, user=user)
        responses: tuple[Any, ...] = (
            mutate_pod(request, trust=TRUST, takeover=True),
            validate_pod(request, trust=TRUST),
            validate_manifest(kinds.CLAIM, request),
            validate_binding(request, pod=None, trust=TRUST),
        )
        for response in responses:
            assert response.uid == "u-1"
            assert response.allowed or response.status.message


HINT = {"scheduling.koordinator.sh/device-allocate-hint": "{}"}
TOLD = ["annotation scheduling.koordinator.sh/device-allocate-hint is ignored: any device that fits is taken"]


@pytest.mark.parametrize(
    ("target", "want"),
    [
        pytest.param(pod(requests={"nvidia.com/gpu": 1}, annotations=HINT), TOLD, id="a pod of ours"),
        pytest.param(pod(annotations={"gpu.scheduling/claim": "c"} | HINT), TOLD, id="by a claim"),
        pytest.param(pod(requests={"nvidia.com/gpu": 1}), None, id="nothing is ignored"),
        pytest.param(pod(annotations=HINT), None, id="no devices are asked for"),
        pytest.param(
            named(pod(requests={"nvidia.com/gpumem": 100}, annotations=HINT), "hami-scheduler"),
            None,
            id="HAMi's own scheduler serves it",
        ),
        pytest.param(
            named(pod(requests={"nvidia.com/gpumem": 100}, annotations=HINT), "gpu-scheduler"),
            TOLD,
            id="ours serves it",
        ),
    ],
)
def test_what_is_ignored_is_warned_of(target, want):
    """Names that other schedulers go by and we do not: kubectl shows a sentence for each."""
    response = check(target)
    assert response.allowed
    assert response.warnings == want


def test_an_edit_warns_of_nothing():
    """What was told when the pod was made is not told with each of its updates."""
    target = pod(requests={"nvidia.com/gpu": 1}, annotations=HINT)
    response = check(target, operation="UPDATE", old=target)
    assert (response.allowed, response.warnings) == (True, None)


KAI_HALF = {"gpu-fraction": "0.5"}


@pytest.mark.parametrize(
    ("old", "new", "more", "want"),
    [
        pytest.param({}, CLAIM, {}, False, id="a claim"),
        pytest.param({}, CLAIM, {"sub_resource": "status"}, False, id="a claim, by status"),
        pytest.param({}, CLAIM, {"sub_resource": "ephemeralcontainers"}, False, id="a claim, with a container"),
        pytest.param({}, KAI_HALF, {}, False, id="a part of a GPU in KAI's words"),
        pytest.param({}, {"gpu-memory": "4000"}, {}, False, id="memory in KAI's words"),
        pytest.param(KAI_HALF, CLAIM, {}, False, id="another way of asking"),
        pytest.param({}, CLAIM, {"user": US}, True, id="by gpuplane"),
        pytest.param(
            CLAIM, {"gpu.scheduling/claim": "other"}, {}, True, id="another claim: its containers refer to the result"
        ),
        pytest.param(CLAIM, {**CLAIM, "note": "x"}, {}, True, id="something else"),
        pytest.param(CLAIM, {}, {}, True, id="taken away"),
    ],
)
def test_a_pod_that_is_there_does_not_begin_to_ask(old, new, more, want):
    """CLAIM-7 its containers have no reference to what it would be given, so they would see any device, or none."""
    response = check(pod(annotations=new), old=pod(annotations=old), operation="UPDATE", **more)
    assert response.allowed is want
    if not want:
        assert (response.status.code, next(iter(new)) in response.status.message) == (403, True)


def test_another_schedulers_pod_is_left_to_it():
    """DEV-11 a pod that names KAI's scheduler."""
    before, after = pod(schedulerName="kai-scheduler"), pod(annotations=KAI_HALF, schedulerName="kai-scheduler")
    assert check(after, old=before, operation="UPDATE").allowed
