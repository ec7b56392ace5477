"""One `gpu.scheduling/pods` a pod that asks for devices: set by the one webhook, guarded by the other, no way of
asking.
"""

import msgspec
import pytest

from claims.admission.counted import counted_amount, is_counted
from claims.admission.mutate import mutate_pod
from claims.admission.recognise import looks_ours
from claims.admission.trust import Trust
from claims.admission.validate_pod import validate_pod
from claims.dialects.parse import asks_for_devices
from kube.keys import PODS_RESOURCE
from kube.objects import Pod
from tests.unit.claims.admission.reviews import USER, operations, patched, pod, review

CLAIM = {"gpu.scheduling/claim": "mine"}
ONE = {PODS_RESOURCE: "1"}
TRUST = Trust()


def mutated(obj, **settings):
    """The pod as the mutating webhook leaves it, which a second pass does not change."""
    after = patched(obj, mutate_pod(review(obj), trust=TRUST, **settings))
    assert operations(mutate_pod(review(after), trust=TRUST, **settings)) == []
    return after


def decoded(obj):
    return msgspec.convert(obj, Pod)


def container(name="main", **resources):
    own = {part: None if amounts is None else dict(amounts) for part, amounts in resources.items()}
    return {"name": name, "image": "cuda", **({"resources": own} if own else {})}


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([container()], id="no resources"),
        pytest.param([container(limits=None, requests=None)], id="resources that say null"),
        pytest.param([{**container(), "resources": None}], id="null resources"),
        pytest.param([container(requests={"cpu": "1"})], id="requests only"),
        pytest.param([container(limits={"cpu": "1"}, requests={})], id="limits and empty requests"),
        pytest.param([container(limits=ONE)], id="half of it"),
        pytest.param([container(limits={PODS_RESOURCE: "7"}, requests={PODS_RESOURCE: "7"})], id="another amount"),
        pytest.param(
            [container(limits={PODS_RESOURCE: 0}), container("more", limits=ONE, requests=ONE)], id="elsewhere"
        ),
        pytest.param([container("injected"), container(limits=ONE, requests=ONE)], id="a container was put in before"),
    ],
)
def test_the_first_container_has_one_and_no_other_any(containers):
    """Whatever was there, kube-scheduler counts one; the same pod twice gives no second patch."""
    init = [container("init", limits={PODS_RESOURCE: "3"}, requests={PODS_RESOURCE: "3"})]
    after = mutated(pod(annotations=CLAIM, init=init, more={"containers": containers}))
    first, *others = after["spec"]["containers"]
    assert first["resources"]["limits"][PODS_RESOURCE] == first["resources"]["requests"][PODS_RESOURCE] == "1"
    for one in (*others, *after["spec"]["initContainers"]):
        assert PODS_RESOURCE not in str(one)
    assert counted_amount(decoded(after)) == 1
    assert is_counted(decoded(after))
    assert validate_pod(review(after), trust=TRUST).allowed


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(pod(requests={"nvidia.com/gpu": "1"}), id="native"),
        pytest.param(pod(requests={"koordinator.sh/gpu": "50"}), id="koordinator"),
        pytest.param(pod(requests={"kubernetes.io/rdma": "50"}), id="another type"),
    ],
)
def test_in_every_dialect(obj):
    """Other amounts stay as they are."""
    before = dict(obj["spec"]["containers"][0]["resources"]["limits"])
    after = mutated(obj, count_native=True)["spec"]["containers"][0]["resources"]
    assert after == {"limits": {**before, **ONE}, "requests": ONE}


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param({"nvidia.com/gpu": "1"}, id="as it came"),
        pytest.param({"nvidia.com/gpu": "1", PODS_RESOURCE: "7"}, id="with what a user wrote"),
    ],
)
def test_native_pods_are_counted_by_what_they_ask_for(requests):
    """An autoscaler of nodes sees them as they were written, unless the settings say otherwise."""
    after = mutated(pod(requests=requests))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert not is_counted(decoded(after))
    assert validate_pod(review(after), trust=TRUST).allowed


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(pod(), True, id="asks for nothing"),
        pytest.param(pod(requests={"nvidia.com/gpu": "0"}), True, id="asks for none"),
        pytest.param(pod(requests={PODS_RESOURCE: "0"}), True, id="names it, takes none"),
        pytest.param(pod(requests=ONE), False, id="takes of it, and asks for no devices"),
        pytest.param(pod(requests={PODS_RESOURCE: "100000"}), False, id="takes it all"),
        pytest.param(pod(init=[container("init", limits=ONE)]), False, id="before it starts"),
    ],
)
def test_others_get_none_and_may_take_none(obj, want):
    """Pods that are not ours are not touched, and cannot keep those that are off a node."""
    assert mutated(obj) == obj
    assert validate_pod(review(obj), trust=TRUST).allowed is want


def test_the_counted_resource_requests_no_device():
    """DEV-3 neither alone nor beside a dialect."""
    assert not asks_for_devices(decoded(pod(requests=ONE)))
    assert not looks_ours(msgspec.Raw(msgspec.json.encode({"spec": {"containers": [{"resources": {"limits": ONE}}]}})))
    assert validate_pod(review(pod(annotations=CLAIM)), trust=TRUST).allowed, "made before there was any of it"


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(pod(annotations=CLAIM, requests={PODS_RESOURCE: "2"}), False, id="two"),
        pytest.param(pod(annotations=CLAIM, requests={PODS_RESOURCE: "0"}), False, id="none"),
        pytest.param(pod(annotations=CLAIM, requests={PODS_RESOURCE: "many"}), False, id="no number"),
        pytest.param(pod(annotations=CLAIM, requests=ONE), False, id="only a limit"),
        pytest.param(
            pod(annotations=CLAIM, init=[container("init", limits=ONE, requests=ONE)]), False, id="an init container"
        ),
        pytest.param(
            pod(requests={"nvidia.com/gpu": "1", PODS_RESOURCE: "100000"}), False, id="so many that nobody else fits"
        ),
    ],
)
def test_what_was_changed_after_us_is_refused(obj, want):
    """Another webhook, or nobody, set it otherwise: the pod would count as more than one, or as none."""
    answer = validate_pod(review(obj, user=USER), trust=TRUST)
    assert answer.allowed is want
    assert answer.status is not None
    assert answer.status.code == 403
    assert PODS_RESOURCE in answer.status.message
