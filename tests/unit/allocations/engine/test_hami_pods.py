"""Pods in HAMi's words with init containers and sidecars, from the manifest to the annotation and back."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.build import build_snapshot
from allocations.engine.plan import plan
from claims.dialects.adopted import Adoption
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceRequest
from claims.dialects.write_back import VisibleDevices, binding_annotations
from kube.objects import Pod
from tests.builders import GI, MI, apply, device, fleet, node

AMOUNTS: Any = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"gpumem": st.integers(1, 9_000)}, optional={"gpucores": st.integers(0, 99), "gpu": st.integers(1, 2)}
    ),
    st.fixed_dictionaries({"gpumem-percentage": st.integers(1, 100)}, optional={"gpucores": st.integers(0, 99)}),
    st.fixed_dictionaries(
        {"gpucores": st.just(100)}, optional={"gpumem": st.integers(1, 9_000), "gpu": st.integers(1, 2)}
    ),
)
KINDS = st.sampled_from(["init", "init", "sidecar"])


def container(name: str, amounts: dict[str, int], *, kind: str = "") -> dict[str, Any]:
    limits = {f"nvidia.com/{key}": str(amount) for key, amount in amounts.items()}
    return {"name": name, "resources": {"limits": limits}, **({"restartPolicy": "Always"} if kind == "sidecar" else {})}


@st.composite
def pods(draw: Any) -> Pod:
    inits = [container(f"i{place}", draw(AMOUNTS), kind=draw(KINDS)) for place in range(draw(st.integers(0, 3)))]
    apps = [container(f"c{place}", draw(AMOUNTS)) for place in range(draw(st.integers(1, 3)))]
    return msgspec.convert({"spec": {"initContainers": inits, "containers": apps}}, Pod)


@st.composite
def nodes(draw: Any) -> Any:
    used = st.sampled_from([(0, 0), (0, 0), (30, 4 * GI), (100, 10 * GI)])
    sizes = st.sampled_from([10 * GI, 12 * GI, 10 * GI + 12345])
    return [device("n", minor, memory=draw(sizes), used=draw(used)) for minor in range(draw(st.integers(1, 4)))]


def carrying(pod: Pod, annotations: dict[str, str]) -> Pod:
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name="n"),
    )


@settings(max_examples=300, deadline=None)
@given(pods(), nodes())
def test_what_is_planned_is_written_and_read_back(pod: Pod, devices: Any) -> None:
    """LEASE-6 DEV-2 from all annotations the very grants are read; from HAMi's alone the same but for parts of a
    MiB that it cannot tell.
    """
    asked = parse_pod(pod, find_claim=lambda _namespace, _name: None)
    if not isinstance(asked, DeviceRequest):
        return
    picture = build_snapshot([node("n", others=devices)])
    decision = plan(picture, asked)
    if decision.node is None:
        return
    after = apply(picture, decision)
    assert (after.core_used <= 100).all()
    assert (after.memory_used <= after.memory_total).all()
    annotations = binding_annotations(
        request=decision.served(asked),
        node="n",
        grants=decision.grants,
        visible=VisibleDevices.UUID,
        memory_total={("gpu", one.minor): one.memory_bytes for one in devices}.get,
    )
    found = read_allocation(carrying(pod, annotations), request=asked)
    assert isinstance(found, Adoption), found
    totals = {one.minor: one.memory_bytes for one in devices}
    granted: dict[int, Any] = {
        one.minor: "whole" if one.whole else (one.core_percent, one.memory_bytes or 0) for one in decision.grants
    }
    assert granted == {
        one.minor: "whole" if one.whole else (one.core_percent, one.memory_bytes or 0) for one in found.devices
    }
    theirs = {key: value for key, value in annotations.items() if key.startswith("hami.io/")}
    if not theirs:
        return  # by nvidia.com/gpu alone
    read = read_allocation(carrying(pod, theirs), request=asked)
    assert isinstance(read, Adoption), read
    minor_of = {one.uuid: one.minor for one in devices}
    assert {minor_of[one.uuid] for one in read.devices} == set(granted)
    lost = 2 * MI * len(annotations["hami.io/vgpu-devices-allocated"].split(";"))
    for one in read.devices:
        exact = granted[minor_of[one.uuid]]
        if exact == "whole" or one.whole:
            assert (exact, one.whole) == ("whole", True)
            continue
        core, memory = exact
        assert one.core_percent == core
        assert memory - lost < (one.memory_bytes or 0) <= memory <= totals[minor_of[one.uuid]]


@settings(max_examples=100, deadline=None)
@given(AMOUNTS, AMOUNTS, KINDS)
def test_an_init_container_and_a_container_that_each_fit_alone(early: Any, late: Any, kind: str) -> None:
    """DEV-2 on one GPU they are placed together, one after another; a sidecar only where both fit at once."""

    def placed(*inits: Any, apps: Any) -> bool:
        manifest = {"spec": {"initContainers": list(inits), "containers": [container("c", apps)]}}
        asked = parse_pod(msgspec.convert(manifest, Pod), find_claim=lambda _namespace, _name: None)
        picture = fleet(node("n", gpus=1, memory=10 * GI))
        return asked is None or (isinstance(asked, DeviceRequest) and plan(picture, asked).node == "n")

    if not early or not late:
        return
    first = container("i", early, kind=kind)
    each = placed(apps=early) and placed(apps=late)
    both = placed(first, apps=late)
    assert both == each if kind == "init" else both <= each
