"""HAMi's pods: every mix of its resources on a container against rules written down here a second time, its
annotations, several containers.
"""

import itertools
from typing import Any

import msgspec
import pytest

from claims.dialects.parse import dialect_of, parse_pod
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
        kubelet_gpus=True,
    )
    assert found.several


def when(*limits: dict[str, str], inits: Any) -> dict[str, tuple[int, ...]]:
    """Container → the steps in which it runs; of those that ask."""
    return {ask.container: tuple(ask.steps) for ask in asks(*limits, inits=inits)}


@pytest.mark.parametrize(
    ("inits", "want"),
    [
        pytest.param([init("i")], {"c0": (0, 0), "c1": (0, 0)}, id="asks for nothing"),
        pytest.param([init("i", gpumem="5")], {"c0": (1, 1), "c1": (1, 1), "i": (0, 0)}, id="before the containers"),
        pytest.param(
            [init("i", gpumem="5"), init("silent"), init("j", gpumem="5")],
            {"c0": (2, 2), "c1": (2, 2), "i": (0, 0), "j": (1, 1)},
            id="one after another",
        ),
        pytest.param(
            [init("s", always=True, gpumem="5")], {"c0": (0, 0), "c1": (0, 0), "s": (0, 0)}, id="a sidecar with them"
        ),
        pytest.param(
            [init("i", gpumem="5"), init("s", always=True, gpumem="5"), init("j", gpumem="5")],
            {"c0": (2, 2), "c1": (2, 2), "i": (0, 0), "s": (1, 2), "j": (1, 1)},
            id="a sidecar runs beside what starts later",
        ),
    ],
)
def test_init_containers_run_before_the_containers(inits: Any, want: Any) -> None:
    """DEV-2 what does not run at once is not counted at once; a sidecar runs on."""
    assert when(SMALL, LARGE, inits=inits) == want


def test_an_init_container_has_devices_of_its_own_amounts() -> None:
    """DEV-2 whatever the containers after it ask for."""
    found = parse(hami_pod(LARGE, inits=[init("i", gpumem="500"), init("quiet")]))
    assert found.containers == ("i", "quiet", "c0")
    assert [(ask.container, ask.core_percent, ask.memory_bytes) for ask in found.asks] == [
        ("c0", 40, 9000 * MIB),
        ("i", 0, 500 * MIB),
    ]


def test_devices_are_counted_at_once() -> None:
    """DEV-3 the bound on devices is for what runs at the same time."""
    many = {"nvidia.com/gpu": "600", "nvidia.com/gpumem": "1"}
    assert len(asks(many, inits=[init("i", gpu="600", gpumem="1")])) == 2
    assert parse(hami_pod(many, inits=[init("s", always=True, gpu="600", gpumem="1")])).rule == "too-many"
    assert parse(hami_pod(many, many)).rule == "too-many"


def test_a_pod_of_many_containers_is_refused() -> None:
    """DEV-3 planning them all at once has a bound; it is told at admission."""
    assert len(asks(*[SMALL] * 16)) == 16
    refusal = parse(hami_pod(*[SMALL] * 17))
    assert (refusal.rule, "16 containers" in refusal.reason) == ("hami-containers", True)
    assert len(asks(*[SMALL] * 16, inits=[init(f"i{number}", gpumem="1") for number in range(16)])) == 32
    beside = [init("s", always=True, gpumem="1")]
    assert parse(hami_pod(*[SMALL] * 16, inits=beside)).rule == "hami-containers"
    before = [init(f"i{number}", gpumem="1") for number in range(17)]
    assert parse(hami_pod(SMALL, inits=before)).rule == "hami-containers"


@pytest.mark.parametrize("limits", [SMALL, {"nvidia.com/gpu": "2"}], ids=["shares", "whole GPUs"])
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
    ids=[
        "no UUID",
        "only commas",
        "a UUID with a space",
        "no model",
        "too many models",
        "numa-bind that is no boolean",
        "an unknown node policy",
        "no GPU policy",
    ],
)
def test_annotations_that_say_nothing_clear_are_refused(name: str, value: str, rule: str) -> None:
    refusal = parse(hami_pod(SMALL, annotations={name: value}))
    assert (refusal.rule, refusal.field) == (rule, f"metadata.annotations[{name}]")
    assert name in refusal.reason


@pytest.mark.parametrize(
    ("text", "bound"), [("1", True), ("t", True), ("TRUE", True), ("0", False), ("F", False), ("false", False)]
)
def test_numa_bind_is_read_as_go_reads_it(text: str, bound: bool) -> None:
    """DEV-3 what HAMi takes for true or false is no reason to refuse a pod."""
    (ask,) = parse(hami_pod(SMALL, annotations={"nvidia.com/numa-bind": text})).asks
    assert ask.limits == (Limits(one_numa=True) if bound else None)


def test_other_pods_do_not_listen_to_them() -> None:
    pod = hami_pod({"koordinator.sh/gpu": "50"}, annotations={"nvidia.com/numa-bind": "yes"})
    assert parse(pod).asks == (DeviceAsk("gpu", 1, core_percent=50, memory_ratio=50),)
