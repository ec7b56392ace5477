"""HAMi's pods: every mix of its resources on a container against rules written down here a second time, its annotations, several containers."""

import itertools
from typing import Any

import msgspec
import pytest

from claims.dialects import dialect_of, parse_pod
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Limits, Policy, Refusal, SharePolicy
from kube.objects import Pod

MIB = 1024**2
AMOUNTS: dict[str, tuple[str | None, ...]] = {
    "nvidia.com/gpu": (None, "0", "1", "3", "1001", "-1", "0.5"),
    "nvidia.com/gpumem": (None, "0", "3000", "3k", "9223372036854775807", "1.5"),
    "nvidia.com/gpumem-percentage": (None, "0", "50", "100", "101", "half"),
    "nvidia.com/gpucores": (None, "0", "30", "100", "101", "1e400"),
}
BAD = {"-1", "0.5", "1.5", "half", "1e400"}


def hami_pod(*limits: dict[str, str], inits: Any = (), annotations: Any = None, requests: bool = False) -> Pod:
    part = "requests" if requests else "limits"
    listed = [{"name": f"c{number}", "resources": {part: one}} for number, one in enumerate(limits)]
    spec = {"containers": listed, "initContainers": list(inits)}
    metadata = {"name": "p", "namespace": "team", "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def init(name: str, *, always: bool = False, **amounts: str) -> dict[str, Any]:
    stated = {f"nvidia.com/{key}": value for key, value in amounts.items()}
    return {"name": name, "resources": {"limits": stated}, **({"restartPolicy": "Always"} if always else {})}


def parse(pod: Pod) -> Any:
    return parse_pod(pod, find_claim=lambda _namespace, _name: None)


def asks(*limits: dict[str, str], **more: Any) -> tuple[DeviceAsk, ...]:
    parsed = parse(hami_pod(*limits, **more))
    assert isinstance(parsed, DeviceRequest), parsed
    return parsed.asks


def want(gpu: str | None, memory: str | None, percentage: str | None, cores: str | None) -> Any:
    """The ask, None for no devices, or the rules that are broken."""
    stated = (gpu, memory, percentage, cores)
    if BAD.intersection(stated):
        return {"quantity"}
    count, mib, percent, core = ({"3k": 3000, None: 0}.get(one) or int(one or 0) for one in stated)
    if not mib and not percent and not core:
        if count > 1000:
            return {"too-many"}
        return DeviceAsk(type="gpu", count=count) if count else None
    broken = set()
    if count > 1000:
        broken.add("too-many")
    if mib and percent:
        broken.add("hami-memory-twice")
    if percent > 100 or core > 100:
        broken.add("hami-over-100")
    if mib > 2**40:
        broken.add("quantity")
    if broken:
        return broken
    ask: Any = {"type": "gpu", "count": count or 1, "container": "c0"}
    if core == 100:
        return DeviceAsk(**ask, limits=Limits(memory_least=mib * MIB) if mib else None)
    return DeviceAsk(
        **ask, core_percent=core, memory_bytes=mib * MIB or None, memory_ratio=None if mib else percent or 100
    )


@pytest.mark.parametrize("requests", [False, True])
def test_every_mix(requests: bool) -> None:
    """DEV-3 HAMi's resources in every mix of good and bad amounts."""
    served = 0
    for mix in itertools.product(*AMOUNTS.values()):
        limits = {name: amount for name, amount in zip(AMOUNTS, mix, strict=True) if amount is not None}
        found, wanted = parse(hami_pod(limits, requests=requests)), want(*mix)
        if wanted is None or isinstance(wanted, DeviceAsk):
            served += 1
            assert (None if found is None else found.asks) == (None if wanted is None else (wanted,)), mix
        else:
            assert isinstance(found, Refusal), mix
            assert found.rule in wanted, mix
    assert served > 50


def test_a_pod_is_hamis_by_its_own_resources_only() -> None:
    """DEV-3 nvidia.com/gpu alone is native; beside HAMi's resources it is HAMi's."""
    assert dialect_of(hami_pod({"nvidia.com/gpu": "1"})) is Dialect.NATIVE
    for name in ("gpumem", "gpumem-percentage", "gpucores"):
        assert dialect_of(hami_pod({f"nvidia.com/{name}": "10"})) is Dialect.HAMI
        assert dialect_of(hami_pod({f"nvidia.com/{name}": "10", "nvidia.com/gpu": "2"})) is Dialect.HAMI


SMALL, LARGE = {"nvidia.com/gpumem": "1000"}, {"nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "40"}


def test_each_container_is_planned_by_itself() -> None:
    """DEV-2 amounts of containers are not summed in HAMi's dialect: each has devices of its own."""
    found = parse(hami_pod(SMALL, {}, LARGE | {"nvidia.com/gpu": "2"}))
    assert found == DeviceRequest(
        asks=(
            DeviceAsk("gpu", 1, core_percent=0, memory_bytes=1000 * MIB, container="c0"),
            DeviceAsk("gpu", 2, core_percent=40, memory_bytes=9000 * MIB, container="c2"),
        ),
        dialect=Dialect.HAMI,
        containers=("c0", "c1", "c2"),
    )
    assert found.several


@pytest.mark.parametrize(
    ("inits", "named"),
    [
        pytest.param([init("i", gpumem="500")], ["c0", "c1"], id="asks for less than one that runs later"),
        pytest.param([init("i", gpumem="9000", gpucores="40")], ["c0", "c1"], id="asks for the same"),
        pytest.param([init("i", gpumem="9001")], ["c0", "c1", "i"], id="more memory than any"),
        pytest.param([init("i", gpumem="500", gpucores="41")], ["c0", "c1", "i"], id="more core than any"),
        pytest.param([init("i", gpu="2", gpumem="500")], ["c0", "c1", "i"], id="more devices than any"),
        pytest.param([init("i", gpucores="100")], ["c0", "c1", "i"], id="a whole device"),
        pytest.param([init("i", gpucores="10")], ["c0", "c1", "i"], id="all of the memory"),
        pytest.param([init("i", always=True, gpumem="500")], ["c0", "c1", "i"], id="a sidecar runs beside them"),
        pytest.param([init("i")], ["c0", "c1"], id="asks for nothing"),
    ],
)
def test_init_containers_run_on_the_devices_of_those_after_them(inits: Any, named: list[str]) -> None:
    """DEV-2 an init container counts where it asks for more than every container that runs later."""
    assert [ask.container for ask in asks(SMALL, LARGE, inits=inits)] == named


@pytest.mark.parametrize(
    ("running", "early", "alone"),
    [
        pytest.param({"gpucores": "100"}, {"gpumem": "10"}, True, id="whole, some memory"),
        pytest.param({"gpucores": "100", "gpumem": "20"}, {"gpumem": "10"}, True, id="whole with enough memory"),
        pytest.param({"gpucores": "100", "gpumem": "20"}, {"gpucores": "100", "gpumem": "30"}, True, id="larger whole"),
        pytest.param({"gpucores": "100"}, {"gpumem-percentage": "70"}, True, id="whole, a part"),
        pytest.param({"gpucores": "50"}, {"gpumem": "100"}, True, id="all of the memory, some"),
        pytest.param({"gpumem-percentage": "70"}, {"gpumem-percentage": "70"}, True, id="the same part"),
        pytest.param({"gpumem-percentage": "70"}, {"gpumem-percentage": "71"}, False, id="a larger part"),
        pytest.param({"gpumem-percentage": "70"}, {"gpumem": "1"}, False, id="bytes of an unknown device"),
        pytest.param({"gpumem": "70"}, {"gpumem-percentage": "1"}, False, id="a part of an unknown device"),
    ],
)
def test_which_devices_serve_two(running: Any, early: Any, alone: bool) -> None:
    stated = {f"nvidia.com/{name}": amount for name, amount in running.items()}
    assert len(asks(stated, inits=[init("i", **early)])) == (1 if alone else 2)


def test_devices_are_large_enough_for_an_init_container_that_is_covered() -> None:
    """DEV-2 all of a device's memory serves a container that asks for bytes, if the device has so many."""
    (ask,) = asks({"nvidia.com/gpucores": "50"}, inits=[init("i", gpumem="3000"), init("j", gpumem="2000")])
    assert ask.limits == Limits(memory_least=3000 * MIB)
    (ask,) = asks({"nvidia.com/gpucores": "100", "nvidia.com/gpumem": "9000"}, inits=[init("i", gpumem="3000")])
    assert ask.limits == Limits(memory_least=9000 * MIB)


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    """DEV-2 what runs at once is counted at once: only what starts later makes room for an init container."""
    big: Any = {"gpumem": "40000", "gpucores": "60"}
    before = [init("side", always=True, **big), init("i", **big)]
    assert [ask.container for ask in asks(SMALL, inits=before)] == ["c0", "i", "side"]
    after = [init("i", **big), init("side", always=True, **big)]
    assert [ask.container for ask in asks(SMALL, inits=after)] == ["c0", "side"]


def test_a_pod_of_many_containers_is_refused() -> None:
    """DEV-3 planning them all at once has a bound; it is told at admission."""
    assert len(asks(*[SMALL] * 16)) == 16
    refusal = parse(hami_pod(*[SMALL] * 17))
    assert (refusal.rule, "16 containers" in refusal.reason) == ("hami-containers", True)


@pytest.mark.parametrize("limits", [SMALL, {"nvidia.com/gpu": "2"}])
def test_annotations_say_which_devices(limits: Any) -> None:
    """DEV-3 HAMi's annotations count for its own pods, and for those by nvidia.com/gpu."""
    annotations = {
        "nvidia.com/use-gpuuuid": "GPU-a, GPU-b,GPU-a",
        "nvidia.com/nouse-gpuuuid": "GPU-c",
        "nvidia.com/use-gputype": "A100,h100",
        "nvidia.com/nouse-gputype": "MIG",
        "nvidia.com/numa-bind": "true",
        "hami.io/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "binpack",
    }
    found = parse(hami_pod(limits, annotations=annotations))
    assert found.asks[0].limits == Limits(("GPU-a", "GPU-b"), ("GPU-c",), ("A100", "h100"), ("MIG",), one_numa=True)
    assert (found.policy, found.share, found.own_share) == (Policy.SPREAD, SharePolicy.GPUPACK, True)
    assert not found.under(SharePolicy.GPUSPREAD).to_emptiest
    plain = parse(hami_pod(limits))
    assert plain.asks[0].limits is None
    assert plain.under(SharePolicy.GPUSPREAD).to_emptiest


def test_a_policy_for_what_is_done_anyway() -> None:
    found = parse(hami_pod(SMALL, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"}))
    assert (found.own_share, found.share) == (False, SharePolicy.GPUPACK)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("nvidia.com/use-gpuuuid", "", "hami-list"),
        ("nvidia.com/use-gpuuuid", " , ", "hami-list"),
        ("nvidia.com/nouse-gpuuuid", "GPU a", "hami-list"),
        ("nvidia.com/use-gputype", "", "hami-list"),
        ("nvidia.com/nouse-gputype", ",".join(map(str, range(1001))), "hami-list"),
        ("nvidia.com/numa-bind", "yes", "hami-numa-bind"),
        ("hami.io/node-scheduler-policy", "fast", "hami-policy"),
        ("hami.io/gpu-scheduler-policy", "", "hami-policy"),
    ],
)
def test_annotations_that_say_nothing_clear_are_refused(name: str, value: str, rule: str) -> None:
    refusal = parse(hami_pod(SMALL, annotations={name: value}))
    assert (refusal.rule, refusal.field) == (rule, f"metadata.annotations[{name}]")
    assert name in refusal.reason


def test_other_pods_do_not_listen_to_them() -> None:
    pod = hami_pod({"koordinator.sh/gpu": "50"}, annotations={"nvidia.com/numa-bind": "yes"})
    assert parse(pod).asks == (DeviceAsk("gpu", 1, core_percent=50, memory_ratio=50),)
