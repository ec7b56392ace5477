from typing import Any

import msgspec
import pytest

from allocations.engine.decision import Grant
from allocations.engine.resize import SEVERAL, WHOLE, Amounts, Resized, resized
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect

GI = 1 << 30
TOTALS = {("gpu", 0): 80 * GI, ("gpu", 1): 80 * GI, ("gpu", 2): 100, ("rdma", 0): 0}


def grant(minor: int, core: int, memory: int | None, *, kind: str = "gpu", whole: bool = False) -> Grant:
    return Grant(10 + minor, f"{kind}-{minor}", kind, minor, core, memory, whole)


def share(**amounts: Any) -> DeviceAsk:
    return DeviceAsk("gpu", amounts.pop("count", 1), **{"core_percent": 0, **amounts})


HALF = share(core_percent=50, memory_ratio=50)
NIC = DeviceAsk("rdma", 1, core_percent=40)


@pytest.mark.parametrize(
    ("asks", "grants", "amounts", "want_ask", "want"),
    [
        pytest.param(
            [HALF],
            [grant(0, 50, 40 * GI)],
            Amounts(core_percent=60),
            {"core_percent": 60},
            [(0, 60, 40 * GI)],
            id="core",
        ),
        pytest.param(
            [HALF],
            [grant(0, 50, 40 * GI)],
            Amounts(memory_bytes=8 * GI),
            {"memory_bytes": 8 * GI, "memory_ratio": None},
            [(0, 50, 8 * GI)],
            id="memory takes the place of a ratio",
        ),
        pytest.param(
            [share(core_percent=20, memory_bytes=GI)],
            [grant(0, 20, GI)],
            Amounts(core_percent=0, memory_bytes=2 * GI),
            {"core_percent": 0, "memory_bytes": 2 * GI},
            [(0, 0, 2 * GI)],
            id="memory alone is left",
        ),
        pytest.param(
            [share(count=2, core_percent=20, memory_bytes=GI)],
            [grant(0, 20, GI), grant(1, 20, GI)],
            Amounts(core_percent=30),
            {"core_percent": 30},
            [(0, 30, GI), (1, 30, GI)],
            id="every device",
        ),
        pytest.param(
            [share(core_percent=50, memory_ratio=50)],
            [grant(2, 50, 50)],
            Amounts(core_percent=33, memory_ratio=33),
            {"core_percent": 33, "memory_ratio": 33},
            [(2, 33, 33)],
            id="a ratio",
        ),
        pytest.param(
            [share(count=2, memory_ratio=50)],
            [grant(0, 0, 40 * GI), grant(2, 0, 50)],
            Amounts(memory_ratio=1),
            {"memory_ratio": 1},
            [(0, 0, 80 * GI // 100), (2, 0, 1)],
            id="a ratio is of each device, rounded down",
        ),
        pytest.param(
            [HALF, NIC],
            [grant(0, 50, 40 * GI), grant(0, 40, None, kind="rdma")],
            Amounts(core_percent=10),
            {"core_percent": 10},
            [(0, 10, 40 * GI)],
            id="GPUs, where there are others beside them",
        ),
        pytest.param(
            [NIC],
            [grant(0, 40, None, kind="rdma")],
            Amounts(core_percent=50),
            {"core_percent": 50},
            [(0, 50, 0)],
            id="a NIC",
        ),
        pytest.param([HALF], [grant(0, 50, 40 * GI)], Amounts(core_percent=50), {}, [], id="the same"),
        pytest.param(
            [HALF],
            [grant(0, 50, 40 * GI)],
            Amounts(memory_bytes=40 * GI),
            {"memory_bytes": 40 * GI, "memory_ratio": None},
            [],
            id="the same, asked for otherwise",
        ),
    ],
)
def test_new_amounts(asks: Any, grants: Any, amounts: Amounts, want_ask: Any, want: Any) -> None:
    """SHARE-6b amounts follow the ask as at placement; what is left out stays."""
    request = DeviceRequest(asks=tuple(asks))
    found = resized(request, grants, TOTALS, amounts)
    assert isinstance(found, Resized)
    assert [(one.grant.minor, one.core_percent, one.memory_bytes) for one in found.sizings] == want
    asked = (msgspec.structs.replace(asks[0], **want_ask), *asks[1:])
    assert found.request == DeviceRequest(asks=asked, resized=bool(want_ask))


@pytest.mark.parametrize(
    ("asks", "grants", "amounts", "want"),
    [
        pytest.param(
            [DeviceAsk("gpu", 1)], [grant(0, 100, 80 * GI, whole=True)], Amounts(50), WHOLE, id="whole devices"
        ),
        pytest.param(
            [share(container="a", core_percent=1), share(container="b", core_percent=1)],
            [grant(0, 2, 0)],
            Amounts(50),
            SEVERAL,
            id="containers with shares of their own",
        ),
        pytest.param(
            [HALF],
            [grant(0, 50, GI)],
            Amounts(memory_bytes=81 * GI),
            "gpu 0 has 85899345920 bytes",
            id="too much memory",
        ),
        pytest.param([HALF], [grant(0, 50, GI)], Amounts(101), "at most 100 core", id="too much core"),
        pytest.param([share(core_percent=50)], [grant(0, 50, 0)], Amounts(0), "core, memory or both", id="nothing"),
        pytest.param(
            [NIC], [grant(0, 40, None, kind="rdma")], Amounts(memory_bytes=1), "have no memory", id="memory of a NIC"
        ),
    ],
)
def test_refused(asks: Any, grants: Any, amounts: Amounts, want: str) -> None:
    """SHARE-6b what cannot be resized is refused with the reason."""
    found = resized(DeviceRequest(asks=tuple(asks), dialect=Dialect.HAMI), grants, TOTALS, amounts)
    assert isinstance(found, str)
    assert want in found
