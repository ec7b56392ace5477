"""Every mix of KAI's annotations, good and bad values of each, against rules written down here a second time."""

import itertools
from typing import Any

import msgspec
import pytest

from claims.dialects.parse import dialect_of, parse_pod
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect, Refusal
from kube.objects import Pod

MIB = 1024**2
FRACTIONS: dict[str | None, int | str | None] = {
    None: None,
    "0.5": 50,
    "0.25": 25,
    ".01": 1,
    "1e-1": 10,
    "+0.990": 99,
    "0": "kai-fraction",
    "1": "kai-fraction",
    "1.0": "kai-fraction",
    "-0.5": "kai-fraction",
    "NaN": "kai-fraction",
    "inf": "kai-fraction",
    "1e400": "kai-fraction",
    "0,5": "kai-fraction",
    " 0.5": "kai-fraction",
    "half": "kai-fraction",
    "": "kai-fraction",
    "0." + "5" * 40: "kai-fraction",
    "0.125": "kai-fraction-percent",
    "1e-9": "kai-fraction-percent",
}
MEMORIES: dict[str | None, int | str | None] = {
    None: None,
    "2000": 2000 * MIB,
    "1": MIB,
    "0": "kai-memory",
    "-1": "kai-memory",
    "1.5": "kai-memory",
    "2Gi": "kai-memory",
    "1e3": "kai-memory",
    "": "kai-memory",
    "9999999999999999999": "kai-memory",
}
DEVICES: dict[str | None, int | str] = {
    None: 1,
    "1": 1,
    "2": 2,
    "0": "kai-num-devices",
    "-1": "kai-num-devices",
    "1.5": "kai-num-devices",
    "two": "kai-num-devices",
    "1001": "too-many",
}
CONTAINERS: dict[str | None, str] = {None: "", "main": "", "setup": "", "other": "kai-container"}
NAMES = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name")


def kai_pod(**annotations: str) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "team", "annotations": annotations},
            "spec": {"containers": [{"name": "main"}, {"name": "beside"}], "initContainers": [{"name": "setup"}]},
        },
        Pod,
    )


def parse(pod: Pod) -> Any:
    return parse_pod(pod, find_claim=lambda _namespace, _name: None)


def want(fraction: Any, memory: Any, devices: Any, container: Any) -> DeviceAsk | set[str]:
    """The ask, or the rules that are broken."""
    broken = {one for one in (fraction, memory, devices, container) if isinstance(one, str) and one}
    if fraction is not None and memory is not None:
        broken.add("kai-fraction-and-memory")
    if fraction is None and memory is None:
        broken.add("kai-alone")
    if broken:
        return broken
    if fraction is not None:
        return DeviceAsk(type="gpu", count=devices, core_percent=fraction, memory_ratio=fraction)
    return DeviceAsk(type="gpu", count=devices, core_percent=0, memory_bytes=memory)


def test_every_mix_of_annotations() -> None:
    """SHARE-1 DEV-3 valid mixes are shares of so many GPUs, anything else is refused by a rule that it broke."""
    seen = 0
    for values in itertools.product(FRACTIONS, MEMORIES, DEVICES, CONTAINERS):
        stated = {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
        if not stated:
            continue
        wanted = want(FRACTIONS[values[0]], MEMORIES[values[1]], DEVICES[values[2]], CONTAINERS[values[3]])
        found = parse(kai_pod(**stated))
        if isinstance(wanted, set):
            assert isinstance(found, Refusal), stated
            assert found.rule in wanted, stated
            assert found.field.startswith("metadata.annotations["), stated
        else:
            assert found == DeviceRequest(asks=(wanted,), dialect=Dialect.KAI), stated
            seen += 1
    assert seen == (5 + 2) * 3 * 3


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        pytest.param(
            {"gpu-fraction": "0.125"},
            "annotation gpu-fraction is '0.125'; GPUs are shared by whole percents, so write two decimals at most, or"
            " gpu-memory",
            id="finer than a percent",
        ),
        pytest.param(
            {"gpu-memory": "16Gi"},
            "annotation gpu-memory is '16Gi'; it must be a whole number of MiB greater than 0, such as 2000",
            id="a quantity",
        ),
        pytest.param(
            {"gpu-fraction-num-devices": "2"},
            "annotation gpu-fraction-num-devices says nothing by itself; add gpu-fraction or gpu-memory",
            id="devices alone",
        ),
        pytest.param(
            {"gpu-fraction": "x" * 300},
            f"annotation gpu-fraction is '{'x' * 24}…'; it must be a number greater than 0 and smaller than 1, such"
            " as 0.5",
            id="a long text is cut",
        ),
    ],
)
def test_reasons(annotations: dict[str, str], reason: str) -> None:
    """DEV-3 a refusal says what to write instead."""
    assert parse(kai_pod(**annotations)).reason == reason


def test_the_dialect_is_reported_without_its_rules() -> None:
    """CLAIM-7 the webhook that sets env needs to know the dialect only."""
    assert dialect_of(kai_pod(**{"gpu-fraction": "0.5"})) is Dialect.KAI
    assert dialect_of(kai_pod(**{"gpu-fraction": "much"})) is Dialect.KAI
