"""Node shapes: what is taken, and what is refused by field and rule."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.errors import BadInput
from kube.objects import Taint
from nodes.inventory import DeviceShape, parse_node

GPU: dict[str, Any] = {"minor": 0, "type": "gpu", "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}
NIC: dict[str, Any] = {"minor": 0, "type": "rdma", "uuid": "mlx5_0"}


def with_device(**changes):
    return {"name": "n1", "devices": [{**GPU, **changes}]}


def test_a_full_node():
    devices: list[Any] = [
        {**GPU, "numa": 1, "pcie": "0000:09", "busid": "0000:0a:00.0", "healthy": False},
        {**GPU, "minor": 1, "uuid": "x"},
        NIC,
    ]
    shape = parse_node(
        {
            "name": "n1.example.com",
            "labels": {"zone": "a", "rack": 7},
            "mode": "device-plugin",
            "devices": devices,
            "links": [[0, 1, 18], [1, 0, 4]],
        }
    )
    assert shape.labels == {"zone": "a", "rack": "7"}
    assert shape.mode == "device-plugin"
    assert shape.devices[0] == DeviceShape(
        minor=0,
        type="gpu",
        uuid="GPU-0",
        model="H100",
        memory=80 << 30,
        numa=1,
        pcie="0000:09",
        bus_id="0000:0a:00.0",
        healthy=False,
    )
    assert shape.devices[2] == DeviceShape(minor=0, type="rdma", uuid="mlx5_0")
    assert shape.links == ((0, 1, 18), (1, 0, 4))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        pytest.param(with_device(memory=85899345920), lambda shape: shape.devices[0].memory == 80 << 30, id="bytes"),
        pytest.param(with_device(memory="1e9"), lambda shape: shape.devices[0].memory == 10**9, id="exponent"),
        pytest.param(with_device(minor="3"), lambda shape: shape.devices[0].minor == 3, id="a number as text"),
        pytest.param(with_device(healthy="no"), lambda shape: not shape.devices[0].healthy, id="a flag as text"),
        pytest.param(with_device(model=4090), lambda shape: shape.devices[0].model == "4090", id="text as a number"),
        pytest.param(with_device(numa=None), lambda shape: shape.devices[0].numa == -1, id="null is left out"),
        pytest.param(
            with_device(busid="00000000:3B:00.0"),
            lambda shape: shape.devices[0].bus_id == "0000:3b:00.0",
            id="a PCI address as NVML writes it",
        ),
        pytest.param(
            with_device(busid="10000:e1:00.0"),
            lambda shape: shape.devices[0].bus_id == "10000:e1:00.0",
            id="a long domain",
        ),
        pytest.param(with_device(busid=""), lambda shape: shape.devices[0].bus_id == "", id="no PCI address"),
        pytest.param({"name": "n1"}, lambda shape: shape.mode == "exclusive" and not shape.devices, id="only a name"),
        pytest.param(
            {"name": "n1", "labels": {"gpu.scheduling/mode": "device-plugin"}},
            lambda shape: shape.mode == "device-plugin",
            id="mode by label",
        ),
    ],
)
def test_forgiving(value, read):
    assert read(parse_node(value))


MIG: dict[str, Any] = {
    **GPU,
    "minor": 1056,
    "uuid": "MIG-0",
    "model": "H100 MIG 1g.10gb",
    "memory": "9856Mi",
    "parent": "GPU-0",
    "profile": "1g.10gb",
}


def with_instance(**changes):
    return {"name": "n1", "devices": [GPU, {**MIG, **changes}]}


def test_mig_instances() -> None:
    """DEV-12 an instance has a GPU of the node for a parent, which then is in MIG mode, and is no part of the order of
    samples.
    """
    gpu, instance = parse_node(with_instance()).devices
    assert (gpu.mig, gpu.parent, instance.mig, instance.parent, instance.profile) == (
        True,
        "",
        False,
        "GPU-0",
        "1g.10gb",
    )
    assert parse_node(with_instance()).gpus == ("GPU-0",)
    assert parse_node(with_device(mig=True)).devices[0].mig


def test_types_of_a_source() -> None:
    """NODE-2 left out they are all of a node's; an agent that names none means GPUs, and whatever it lists."""
    everything, some = parse_node({"name": "n1", "devices": [NIC]}), parse_node({"name": "n1", "types": ["gpu"]})
    assert everything.owns("fpga")
    assert (everything.of_agent().types, some.of_agent().types) == (frozenset({"gpu", "rdma"}), frozenset({"gpu"}))
    assert not some.owns("rdma")


@pytest.mark.parametrize(
    ("value", "want_field", "want_rule"),
    [
        pytest.param([], "", "type", id="not an object"),
        pytest.param({}, "name", "required", id="no name"),
        pytest.param({"name": "Node_1"}, "name", "dns-subdomain", id="not a DNS name"),
        pytest.param({"name": "n1", "mode": "shared"}, "mode", "choice", id="unknown mode"),
        pytest.param({"name": "n1", "devcies": []}, "devcies", "unknown-field", id="a slip of the pen"),
        pytest.param({"name": "n1", "rack": 1}, "rack", "unknown-field", id="an unknown field"),
        pytest.param(with_device(vendor="x"), "devices[0].vendor", "unknown-field", id="an unknown field of a device"),
        pytest.param({"name": "n1", "devices": {}}, "devices", "type", id="devices not a list"),
        pytest.param({"name": "n1", "devices": [GPU] * 1025}, "devices", "too-many", id="too many devices"),
        pytest.param(with_device(memory="-1Gi"), "devices[0].memory", "quantity", id="negative memory"),
        pytest.param(with_device(memory=float("nan")), "devices[0].memory", "quantity", id="NaN memory"),
        pytest.param(with_device(memory="2Pi"), "devices[0].memory", "range", id="huge memory"),
        pytest.param(with_device(memory="80GB"), "devices[0].memory", "quantity", id="a unit that is none"),
        pytest.param(with_device(memory=None), "devices[0].memory", "required", id="GPU without memory"),
        pytest.param(with_device(memory=0), "devices[0].memory", "required", id="GPU with no memory"),
        pytest.param(with_device(model=""), "devices[0].model", "required", id="GPU without model"),
        pytest.param(with_device(minor=None), "devices[0].minor", "required", id="no minor"),
        pytest.param(with_device(minor=-1), "devices[0].minor", "range", id="negative minor"),
        pytest.param(with_device(minor=True), "devices[0].minor", "type", id="a flag is no minor"),
        pytest.param(with_device(minor=0.5), "devices[0].minor", "type", id="half a minor"),
        pytest.param(
            with_device(busid="3b:00.0"), "devices[0].busid", "pci-address", id="a PCI address without domain"
        ),
        pytest.param(with_device(busid="0000:3b:00"), "devices[0].busid", "pci-address", id="a switch is no device"),
        pytest.param(with_device(busid=[]), "devices[0].busid", "pci-address", id="a list for an address"),
        pytest.param(with_device(uuid=None), "devices[0].uuid", "required", id="no uuid"),
        pytest.param(with_device(uuid="a b"), "devices[0].uuid", "device-uuid", id="uuid with a space"),
        pytest.param(with_device(type="GPU"), "devices[0].type", "dns-label", id="type not a DNS label"),
        pytest.param(with_device(healthy=1), "devices[0].healthy", "type", id="health is a flag"),
        pytest.param(
            {"name": "n1", "devices": [GPU, {**GPU, "minor": 1}]}, "devices[1].uuid", "duplicate", id="uuid twice"
        ),
        pytest.param(
            {"name": "n1", "devices": [GPU, {**GPU, "uuid": "x"}]}, "devices[1].minor", "duplicate", id="minor twice"
        ),
        pytest.param({"name": "n1", "devices": [GPU], "links": [[0, 1, 1]]}, "links[0]", "link", id="link to nobody"),
        pytest.param({"name": "n1", "devices": [GPU], "links": [[0, 0, 1]]}, "links[0]", "link", id="link to itself"),
        pytest.param({"name": "n1", "links": [[0, 1]]}, "links[0]", "type", id="half a link"),
        pytest.param(
            {"name": "n1", "devices": [GPU], "links": [[0, 1, -1]]}, "links[0][2]", "range", id="negative links"
        ),
        pytest.param(
            with_instance(parent="GPU-9"), "devices[1].parent", "parent", id="an instance of no GPU of the node"
        ),
        pytest.param(with_instance(profile=None), "devices[1].profile", "mig", id="an instance without profile"),
        pytest.param(with_instance(parent=None), "devices[1].parent", "mig", id="a profile of nothing"),
        pytest.param(with_instance(mig=True), "devices[1].parent", "mig", id="an instance in MIG mode"),
        pytest.param(with_instance(profile="1G/10"), "devices[1].profile", "mig", id="no profile"),
        pytest.param(with_instance(type="mig-1g"), "devices[1].type", "mig", id="a type of instances"),
        pytest.param(
            {"name": "n1", "devices": [{**NIC, "mig": True}]}, "devices[0].mig", "mig", id="a NIC in MIG mode"
        ),
        pytest.param({**with_instance(), "links": [[0, 1056, 1]]}, "links[0]", "link", id="a link to an instance"),
        pytest.param({"name": "n1", "types": "gpu"}, "types", "type", id="types no list"),
        pytest.param(
            {"name": "n1", "types": ["rdma"], "devices": [GPU]},
            "devices[0].type",
            "types",
            id="a type that is not reported",
        ),
    ],
)
def test_refused(value, want_field, want_rule):
    with pytest.raises(BadInput) as caught:
        parse_node(value)
    assert (caught.value.field, caught.value.rule) == (want_field, want_rule)
    assert str(caught.value)


def test_an_agent_may_be_newer():
    """What an agent says beyond what is known here is passed over, but a slip of the pen is refused there too."""
    value = {**with_device(vendor="x"), "rack": 1}
    assert parse_node(value, strict=False).devices
    with pytest.raises(BadInput):
        parse_node(with_device(modle="H100"), strict=False)


def test_taints_and_a_cordon():
    """Taints as in a Node, for what-if."""
    taint = {"key": "nvidia.com/gpu", "value": True, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    with pytest.raises(BadInput):
        parse_node({"name": "n1", "taints": [taint]})
    node = parse_node({"name": "n1", "taints": [{**taint, "value": "x"}], "unschedulable": True})
    assert (node.taints, node.unschedulable) == ((Taint("nvidia.com/gpu", "NoSchedule", "x"),), True)


def test_the_name_in_the_address():
    assert parse_node({}, name="n1").name == "n1"
    with pytest.raises(BadInput) as caught:
        parse_node({"name": "n2"}, name="n1")
    assert caught.value.rule == "address"


def test_the_path_leads_the_field():
    with pytest.raises(BadInput) as caught:
        parse_node(with_device(minor="x"), path="nodes[3]")
    assert caught.value.field == "nodes[3].devices[0].minor"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [*GPU, "name", "devices", "links", "labels", "mode", "types", "mig", "parent", "profile", "x"]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@given(JSON)
def test_nothing_but_bad_input_is_raised(value):
    for attempt in (value, {"name": "n1", "devices": [value], "links": [value]}, {"name": "n1", "labels": value}):
        with suppress(BadInput):
            parse_node(attempt)
