"""HAMi's annotation and init containers, against HAMi's own rules (2.9 to 2.10 and what follows; docs/dialects.md says
which release does what).

`next_allocation` and `erased` are the two steps of HAMi's device plugin, written down here a second time: for each
container that starts it takes the first slot that is not empty, finds its container by its place (init containers
first), and leaves the slot empty.
"""

from typing import Any

import msgspec
import pytest

from claims.dialects.adopted import Adoption, Unreadable
from claims.dialects.parse import parse_pod
from claims.dialects.read_back import read_allocation
from claims.dialects.request import DeviceRequest
from claims.dialects.write_back import VisibleDevices, binding_annotations
from kube.objects import Pod

MIB = 1024**2
ALLOCATED = "hami.io/vgpu-devices-allocated"
EACH = "gpu.scheduling/visible-devices."
Container = tuple[str, dict[str, str], bool]


def app(name: str, **amounts: int) -> Container:
    return name, {f"nvidia.com/{key}": str(amount) for key, amount in amounts.items()}, False


def init(name: str, **amounts: int) -> Container:
    return app(name, **amounts)


def sidecar(name: str, **amounts: int) -> Container:
    return *app(name, **amounts)[:2], True


def pod(inits: Any, apps: Any, annotations: Any = None) -> Pod:
    def manifest(one: Container) -> dict[str, Any]:
        name, limits, always = one
        return {"name": name, "resources": {"limits": limits}} | ({"restartPolicy": "Always"} if always else {})

    spec = {"initContainers": [*map(manifest, inits)], "containers": [*map(manifest, apps)], "nodeName": "n1"}
    return msgspec.convert({"metadata": {"annotations": annotations or {}}, "spec": spec}, Pod)


def held(found: Any) -> Any:
    """UUID → (core, MiB), `whole` for a device with one holder."""
    assert isinstance(found, Adoption), found
    return {
        one.uuid: "whole" if one.whole else (one.core_percent, (one.memory_bytes or 0) // MIB) for one in found.devices
    }


ASKS = {"gpumem": 1, "gpucores": 1}
"""Whatever: what a running pod has is told by its annotation."""
I1, I2, SIDE, A1, A2 = (
    init("i1", **ASKS),
    init("i2", **ASKS),
    sidecar("s", **ASKS),
    app("a1", **ASKS),
    app("a2", **ASKS),
)
SILENT, SILENT_INIT = app("quiet"), init("quiet-init")


@pytest.mark.parametrize(
    ("inits", "apps", "text", "want"),
    [
        pytest.param(
            [I1],
            [A1],
            "G-a,NVIDIA,20000,60:;G-a,NVIDIA,10000,50:;",
            {"G-a": (60, 20000)},
            id="init and container on one GPU: the larger",
        ),
        pytest.param(
            [I1],
            [A1],
            "G-a,NVIDIA,500,10:;G-a,NVIDIA,10000,50:;",
            {"G-a": (50, 10000)},
            id="the container asks for more",
        ),
        pytest.param(
            [I1],
            [A1],
            "G-a,NVIDIA,30000,10:;G-a,NVIDIA,5000,80:;",
            {"G-a": (80, 30000)},
            id="the larger of each amount",
        ),
        pytest.param(
            [I1],
            [A1],
            "G-b,NVIDIA,30000,10:;G-a,NVIDIA,5000,80:;",
            {"G-a": (80, 5000), "G-b": (10, 30000)},
            id="a GPU for each",
        ),
        pytest.param(
            [I1, I2],
            [A1],
            "G-a,NVIDIA,9000,30:;G-a,NVIDIA,7000,70:;G-a,NVIDIA,1,1:;",
            {"G-a": (70, 9000)},
            id="inits run one by one",
        ),
        pytest.param(
            [I1],
            [A1, A2],
            "G-a,NVIDIA,400,40:;G-a,NVIDIA,300,30:;G-a,NVIDIA,200,30:;",
            {"G-a": (60, 500)},
            id="containers add up",
        ),
        pytest.param(
            [SILENT_INIT],
            [A1, A2],
            ";G-a,NVIDIA,300,30:;G-a,NVIDIA,200,30:;",
            {"G-a": (60, 500)},
            id="a silent init has its slot",
        ),
        pytest.param(
            [I1],
            [SILENT, A1],
            "G-a,NVIDIA,300,30:;;G-a,NVIDIA,200,80:;",
            {"G-a": (80, 300)},
            id="a silent container has its slot",
        ),
        pytest.param([I1], [SILENT], "G-a,NVIDIA,300,30:;;", {"G-a": (30, 300)}, id="only an init asks"),
        pytest.param(
            [I1],
            [A1],
            "G-a,NVIDIA,9,90:G-b,NVIDIA,1,10:;G-a,NVIDIA,3,30:G-b,NVIDIA,2,20:;",
            {"G-a": (90, 9), "G-b": (20, 2)},
            id="two GPUs each",
        ),
        pytest.param(
            [SIDE], [A1], "G-a,NVIDIA,4000,40:;G-a,NVIDIA,4000,40:;", {"G-a": (80, 8000)}, id="a sidecar runs on"
        ),
        pytest.param(
            [SIDE, I1],
            [A1],
            "G-a,NVIDIA,2000,10:;G-a,NVIDIA,20000,60:;G-a,NVIDIA,10000,30:;",
            {"G-a": (70, 22000)},
            id="an init beside the sidecar before it",
        ),
        pytest.param(
            [I1, SIDE],
            [A1],
            "G-a,NVIDIA,20000,60:;G-a,NVIDIA,2000,10:;G-a,NVIDIA,10000,30:;",
            {"G-a": (60, 20000)},
            id="an init before the sidecar",
        ),
        pytest.param(
            [I1, SIDE, I2],
            [A1],
            "G-a,NVIDIA,5000,10:;G-a,NVIDIA,3000,30:;G-a,NVIDIA,4000,20:;G-a,NVIDIA,1000,5:;",
            {"G-a": (50, 7000)},
            id="between two inits",
        ),
        pytest.param(
            [SIDE, I1],
            [SILENT],
            "G-a,NVIDIA,8000,50:;G-a,NVIDIA,5000,50:;;",
            {"G-a": (100, 13000)},
            id="all of the core by two is a share",
        ),
        pytest.param([I1], [A1], "G-a,NVIDIA,2000,100:;G-a,NVIDIA,100,10:;", {"G-a": "whole"}, id="whole for an init"),
        pytest.param(
            [I1], [A1], "G-a,NVIDIA,2000,10:;G-a,NVIDIA,100,100:;", {"G-a": "whole"}, id="whole for a container"
        ),
        pytest.param(
            [SILENT_INIT],
            [A1, A2],
            "G-a,NVIDIA,300,60:;G-b,NVIDIA,200,30:;",
            {"G-a": (60, 300), "G-b": (30, 200)},
            id="2.10.0: silent init left out",
        ),
        pytest.param(
            [SILENT_INIT],
            [A1, A2],
            "G-a,NVIDIA,300,60:;G-a,NVIDIA,200,30:;",
            {"G-a": (90, 500)},
            id="2.10.0: and the containers meet",
        ),
        pytest.param(
            [I1],
            [SILENT, A1],
            "G-a,NVIDIA,300,60:;G-a,NVIDIA,200,50:;",
            {"G-a": (60, 300)},
            id="2.10.0: silent container left out",
        ),
        pytest.param(
            [SILENT_INIT, I1],
            [A1],
            "G-a,NVIDIA,300,60:;G-a,NVIDIA,200,50:;",
            {"G-a": (60, 300)},
            id="2.10.0: silent init before one that asks",
        ),
        pytest.param(
            [SILENT_INIT],
            [A1, A2],
            "G-a,NVIDIA,300,30:;G-a,NVIDIA,200,30:;",
            {"G-a": (60, 500)},
            id="2.8: no slots of inits",
        ),
        pytest.param(
            [I1],
            [A1, A2],
            "G-a,NVIDIA,300,30:;G-a,NVIDIA,200,30:;",
            {"G-a": (60, 500)},
            id="2.8: an init that asked was not planned",
        ),
        pytest.param(
            [],
            [SILENT, A1, SILENT],
            "G-a,NVIDIA,1000,0:;;,,0,0:;",
            {"G-a": (0, 1000)},
            id="2.5: an empty device in a silent slot",
        ),
        pytest.param(
            [SILENT_INIT],
            [SILENT],
            "G-a,NVIDIA,9,60:;G-a,NVIDIA,5,30:;",
            {"G-a": (60, 9)},
            id="nobody asks in words known here: by place",
        ),
        pytest.param(
            [], [], "G-a,NVIDIA,9,60:;G-a,NVIDIA,5,30:;", {"G-a": (90, 14)}, id="containers unknown: all add up"
        ),
    ],
)
def test_what_hami_wrote_is_counted_as_it_counts(inits: Any, apps: Any, text: str, want: Any) -> None:
    """LEASE-6 a running pod holds of a GPU the most that its containers have of it at once, by every release's
    slots.
    """
    assert held(read_allocation(pod(inits, apps, {ALLOCATED: text, "hami.io/vgpu-node": "n1"}))) == want


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("G-a", "is not UUID,type,memory,cores", id="no comma"),
        pytest.param("G-a,NVIDIA:;", "is not UUID,type,memory,cores", id="amounts missing"),
        pytest.param(",NVIDIA,1,1:;", "is not UUID,type,memory,cores", id="no UUID"),
        pytest.param("G-a,,1,1:;", "is not UUID,type,memory,cores", id="no type"),
        pytest.param("G-a,NVIDIA,x,1:;", "is not UUID,type,memory,cores", id="memory is no number"),
        pytest.param("G-a,NVIDIA,1,:;", "is not UUID,type,memory,cores", id="core is no number"),
        pytest.param("G-a,NVIDIA,-1,1:;", "is not UUID,type,memory,cores", id="negative memory"),
        pytest.param("G-a,NVIDIA,1,-1:;", "is not UUID,type,memory,cores", id="negative core"),
        pytest.param("G-a,NVIDIA,1,60:G-a,NVIDIA,1,60:;", "more than one device has", id="too much in one container"),
        pytest.param(";;", "names no device", id="nothing but empty slots"),
    ],
)
def test_what_hamis_decoder_refuses_is_reported(text: str, told: str) -> None:
    """LEASE-6 nothing is guessed from an annotation that HAMi could not read either."""
    found = read_allocation(pod([], [A1], {ALLOCATED: text}))
    assert isinstance(found, Unreadable), found
    assert told in found.problem


def test_containers_that_run_at_once_are_never_too_much() -> None:
    """LEASE-6 60 and 60 of one GPU is too much for two containers, not for an init container and a container."""
    text = "G-a,NVIDIA,1,60:;G-a,NVIDIA,1,60:;"
    assert isinstance(read_allocation(pod([], [A1, A2], {ALLOCATED: text})), Unreadable)
    assert isinstance(read_allocation(pod([SIDE], [A1], {ALLOCATED: text})), Unreadable)
    assert held(read_allocation(pod([I1], [A1], {ALLOCATED: text}))) == {"G-a": (60, 1)}


def next_allocation(text: str, one: Pod) -> tuple[str, list[str]] | None:
    """(container, devices) of the first slot that is not empty."""
    names = [container.name for container in (*(one.spec.init_containers or ()), *(one.spec.containers or ()))]
    for place, slot in enumerate(text.split(";")):
        if slot:
            return names[place], [device for device in slot.split(":") if device]
    return None


def erased(text: str) -> str:
    """The annotation with its first filled slot empty."""
    slots = text.split(";")
    slots[next(place for place, slot in enumerate(slots) if slot)] = ""
    return ";".join(slots)


class Granted(msgspec.Struct, frozen=True):
    minor: int
    core_percent: int
    memory_bytes: int | None
    whole: bool = False
    type: str = "gpu"

    @property
    def uuid(self) -> str:
        return f"G-{self.minor}"


TOTAL = 40_000 * MIB + 12345
"""Of a device: no whole number of MiB."""


def written(one: Pod, given: dict[str, tuple[int, ...]], *grants: Granted) -> dict[str, str]:
    """The Binding's annotations for a pod whose containers were given these minors."""
    parsed = parse_pod(one, find_claim=lambda _namespace, _name: None)
    assert isinstance(parsed, DeviceRequest)
    asks = tuple(msgspec.structs.replace(ask, given=given.get(ask.container, ())) for ask in parsed.asks)
    return binding_annotations(
        request=msgspec.structs.replace(parsed, asks=asks),
        node="n1",
        grants=grants,
        visible=VisibleDevices.UUID,
        memory_total={("gpu", minor): TOTAL for minor in range(8)}.get,
    )


@pytest.mark.parametrize(
    ("inits", "apps", "given", "grants", "want"),
    [
        pytest.param(
            [SILENT_INIT],
            [app("a", gpumem=300, gpucores=30)],
            {},
            [Granted(4, 30, 300 * MIB)],
            ";G-4,NVIDIA,300,30:;",
            id="a silent init container has an empty slot",
        ),
        pytest.param(
            [init("i", gpumem=500)],
            [SILENT],
            {},
            [Granted(1, 0, 500 * MIB)],
            "G-1,NVIDIA,500,0:;;",
            id="only an init container asks",
        ),
        pytest.param(
            [init("i", gpumem=500, gpucores=60)],
            [app("a", gpumem=300, gpucores=70)],
            {"i": (1,), "a": (1,)},
            [Granted(1, 70, 500 * MIB)],
            "G-1,NVIDIA,500,60:;G-1,NVIDIA,300,70:;",
            id="each its own amounts, init first",
        ),
        pytest.param(
            [SILENT_INIT, sidecar("s", gpumem=5), init("i", gpumem=9)],
            [SILENT, app("a", gpumem=3)],
            {"s": (0,), "i": (0,), "a": (1,)},
            [Granted(0, 0, 14 * MIB), Granted(1, 0, 3 * MIB)],
            ";G-0,NVIDIA,5,0:;G-0,NVIDIA,9,0:;;G-1,NVIDIA,3,0:;",
            id="a sidecar stands among the init containers",
        ),
        pytest.param(
            [init("i", gpucores=100)],
            [app("a", gpumem=300)],
            {"i": (1,), "a": (1,)},
            [Granted(1, 100, TOTAL, whole=True)],
            "G-1,NVIDIA,40000,100:;G-1,NVIDIA,300,0:;",
            id="whole for the init container alone",
        ),
        pytest.param(
            [],
            [app("a", **{"gpumem-percentage": 33}), app("b", gpumem=1)],
            {"a": (0,), "b": (0,)},
            [Granted(0, 0, TOTAL * 33 // 100 + MIB)],
            "G-0,NVIDIA,13200,0:;G-0,NVIDIA,1,0:;",
            id="a percentage is of whole MiB",
        ),
        pytest.param(
            [],
            [app("a", gpu=2, gpumem=7)],
            {},
            [Granted(0, 0, 7 * MIB), Granted(3, 0, 7 * MIB)],
            "G-0,NVIDIA,7,0:G-3,NVIDIA,7,0:;",
            id="two devices",
        ),
        pytest.param(
            [],
            [app("a", gpucores=100, gpumem=7)],
            {},
            [Granted(0, 100, TOTAL, whole=True)],
            "G-0,NVIDIA,7,100:;",
            id="whole, with the memory that was asked for",
        ),
    ],
)
def test_what_is_written_is_what_hamis_encoder_writes(
    inits: Any, apps: Any, given: Any, grants: Any, want: str
) -> None:
    """One slot a container, init containers first, `:` after each device and `;` after each slot, empty ones too."""
    one = pod(inits, apps)
    text = written(one, given, *grants)[ALLOCATED]
    assert text == want
    asking = {
        name: set(given.get(name, [grant.minor for grant in grants])) for name, limits, _ in (*inits, *apps) if limits
    }
    served = {}
    while (found := next_allocation(text, one)) is not None:
        served[found[0]] = {int(device.split(",")[0].removeprefix("G-")) for device in found[1]}
        text = erased(text)
    assert served == asking
    assert text == ";" * (len(inits) + len(apps))


TOTAL_MIB = TOTAL // MIB


@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({"gpumem": 300}, id="memory"),
        pytest.param({"gpumem": 300, "gpucores": 30}, id="memory and core"),
        pytest.param({"gpumem-percentage": 33, "gpucores": 99}, id="percentage"),
        pytest.param({"gpumem-percentage": 100}, id="all memory"),
        pytest.param({"gpumem": 300, "gpucores": 100}, id="whole with memory"),
    ],
)
def test_hamis_plugin_takes_what_is_written(amounts: dict[str, int]) -> None:
    """Its device plugin (after 2.10.0) refuses a container that is given more memory or core than its limits say."""
    one = pod([init("i", **amounts)], [SILENT])
    whole = amounts.get("gpucores") == 100
    memory = TOTAL if whole else TOTAL * amounts.get("gpumem-percentage", 0) // 100 or amounts.get("gpumem", 0) * MIB
    text = written(one, {}, Granted(0, amounts.get("gpucores", 0), memory, whole=whole))[ALLOCATED]
    mib, core = (int(field) for field in text.split(":")[0].split(",")[2:])
    assert 0 < mib <= amounts.get("gpumem", TOTAL_MIB * amounts.get("gpumem-percentage", 0) // 100)
    assert core == amounts.get("gpucores", 0)


def test_a_whole_device_for_the_init_container_reads_back_whole() -> None:
    """LEASE-6 the container's own part of it does not make the pod's grant less."""
    one = pod([init("i", gpucores=100)], [app("a", gpumem=300)])
    annotations = written(one, {"i": (1,), "a": (1,)}, Granted(1, 100, TOTAL, whole=True))
    again = pod([init("i", gpucores=100)], [app("a", gpumem=300)], annotations)
    asked = parse_pod(again, find_claim=lambda _namespace, _name: None)
    assert isinstance(asked, DeviceRequest)
    found = read_allocation(again, request=asked)
    assert isinstance(found, Adoption)
    assert [(one.minor, one.whole) for one in found.devices] == [(1, True)]


def test_every_container_that_asks_sees_its_own_devices() -> None:
    """CLAIM-7 init containers and sidecars as well."""
    one = pod([sidecar("s", gpumem=5), init("i", gpumem=9)], [app("a", gpumem=3)])
    annotations = written(one, {"s": (0,), "i": (2,), "a": (1,)}, *(Granted(minor, 0, 9 * MIB) for minor in range(3)))
    own = {key.removeprefix(EACH): value for key, value in annotations.items() if key.startswith(EACH)}
    assert own == {"s": "G-0", "i": "G-2", "a": "G-1"}
