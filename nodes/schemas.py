"""What nodes and devices look like over REST, for the OpenAPI document and for nothing else.

The views write plain dicts (`nodes.api`), and inventories are checked by `nodes.inventory`; a
schemathesis run compares both with these.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kube.node_rules import TAINT_EFFECTS
from nodes.choices import Mode, NodeState, Presence
from nodes.inventory import (
    DEVICES_MOST,
    KEY_LONGEST,
    MINOR_MOST,
    MODEL_LONGEST,
    NUMA_MOST,
    PCIE_LONGEST,
    PROFILE_LONGEST,
    TAINTS_MOST,
    TYPE_LONGEST,
)

ONLY_WHAT_IF = "for what-if; of a real node the cluster's own count, and kube-scheduler goes by them"
QUANTITY = {"oneOf": [{"type": "string", "maxLength": 64}, {"type": "integer", "minimum": 0}]}


@extend_schema_field({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 3, "maxItems": 3})
class LinkField(serializers.Field[Any, Any, Any, Any]):
    """[minor, minor, NVLinks between them]."""


@extend_schema_field(QUANTITY)
class QuantityField(serializers.Field[Any, Any, Any, Any]):
    """Bytes, or a quantity such as `80Gi`."""


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class LabelsField(serializers.Field[Any, Any, Any, Any]):
    """Text by name."""


class HolderSchema(serializers.Serializer[Any]):
    """Who holds a device, or a share of it; all but the amounts is null in namespaces that the caller does not see."""

    uid = serializers.UUIDField(allow_null=True, help_text="of the allocation")
    namespace = serializers.CharField(allow_null=True)
    pod = serializers.CharField(allow_null=True)
    holder = serializers.CharField(allow_null=True)
    claim = serializers.CharField(allow_null=True)
    state = serializers.CharField()
    core = serializers.IntegerField(help_text="percent")
    memory = serializers.IntegerField(allow_null=True, help_text="bytes")
    whole = serializers.BooleanField()


class FlappingSchema(serializers.Serializer[Any]):
    """Health that changes by turns."""

    changes = serializers.IntegerField(help_text="of health, one soon after the other")
    since = serializers.DateTimeField(allow_null=True)
    reported = serializers.CharField(allow_blank=True, help_text="what was said last; empty: it is well")


class DisputedSchema(serializers.Serializer[Any]):
    """A device that a node reports and another one has."""

    uuid = serializers.CharField()
    type = serializers.CharField()
    minor = serializers.IntegerField()
    node = serializers.CharField(help_text="the one that has it")


class DeviceSchema(serializers.Serializer[Any]):
    """A device."""

    uid = serializers.CharField()
    uuid = serializers.CharField(help_text="the same as uid")
    node = serializers.CharField()
    type = serializers.CharField()
    minor = serializers.IntegerField()
    model = serializers.CharField(allow_blank=True)
    numa = serializers.IntegerField(allow_null=True)
    pcie = serializers.CharField(allow_blank=True)
    busid = serializers.CharField(allow_blank=True, help_text="PCI address")
    island = serializers.IntegerField(allow_null=True)
    healthy = serializers.BooleanField()
    health_reason = serializers.CharField(allow_blank=True)
    flapping = FlappingSchema(allow_null=True, help_text="while its health changes by turns: it counts as unhealthy")
    presence = serializers.ChoiceField(choices=Presence.values)
    core_used = serializers.IntegerField(help_text="percent")
    core_free = serializers.IntegerField(help_text="percent")
    memory = serializers.IntegerField(allow_null=True, help_text="bytes")
    memory_used = serializers.IntegerField(allow_null=True, help_text="bytes")
    memory_free = serializers.IntegerField(allow_null=True, help_text="bytes")
    stranger = serializers.CharField(allow_blank=True, help_text="who holds it outside the ledger")
    conflict = serializers.CharField(
        allow_blank=True,
        help_text="pods that run with it although the ledger gave it away; given to nobody new meanwhile",
    )
    closed = serializers.CharField(allow_blank=True, help_text="why nobody new gets it; empty where somebody may")
    mig = serializers.BooleanField(help_text="a GPU in MIG mode: only its instances are given to pods")
    parent = serializers.CharField(  # type: ignore[assignment]  # a field of that name, as declared
        allow_null=True, help_text="of a MIG instance: UUID of its GPU"
    )
    profile = serializers.CharField(allow_null=True, help_text="of a MIG instance: 1g.10gb")
    holders = HolderSchema(many=True)
    changed_at = serializers.DateTimeField()


class NodeSchema(serializers.Serializer[Any]):
    """A node; `devices`, `healthy` and `held` are counts."""

    name = serializers.CharField()
    mode = serializers.ChoiceField(choices=Mode.values)
    labels = LabelsField()
    state = serializers.ChoiceField(choices=NodeState.values)
    problem = serializers.CharField(allow_blank=True)
    devices = serializers.IntegerField()
    healthy = serializers.IntegerField()
    held = serializers.IntegerField()
    agent_seen_at = serializers.DateTimeField(allow_null=True)
    registered_at = serializers.DateTimeField()
    changed_at = serializers.DateTimeField()


class NodeDetailSchema(NodeSchema):
    """A node with its links and devices."""

    links = serializers.ListField(child=LinkField())
    inventory = DeviceSchema(many=True)
    disputed = DisputedSchema(
        many=True, help_text="devices that the node reports and other nodes have: given to nobody here"
    )


class DeviceShapeSchema(serializers.Serializer[Any]):
    """A device of an inventory."""

    minor = serializers.IntegerField(min_value=0, max_value=MINOR_MOST)
    type = serializers.RegexField(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", required=False, max_length=TYPE_LONGEST)
    uuid = serializers.RegexField(r"^[A-Za-z0-9._:-]+$", max_length=128)
    model = serializers.CharField(required=False, allow_blank=True, max_length=MODEL_LONGEST)
    memory = QuantityField(required=False)
    numa = serializers.IntegerField(required=False, min_value=-1, max_value=NUMA_MOST)
    pcie = serializers.CharField(required=False, allow_blank=True, max_length=PCIE_LONGEST)
    busid = serializers.RegexField(
        r"^([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])?$", required=False, help_text="PCI address"
    )
    healthy = serializers.BooleanField(required=False, help_text="true where it is left out")
    mig = serializers.BooleanField(required=False, help_text="a GPU in MIG mode")
    parent = serializers.CharField(  # type: ignore[assignment]  # a field of that name, as declared
        required=False, max_length=128, help_text="of a MIG instance: UUID of its GPU"
    )
    profile = serializers.CharField(required=False, max_length=PROFILE_LONGEST, help_text="of a MIG instance: 1g.10gb")


class TaintSchema(serializers.Serializer[Any]):
    """A taint, as in a Node."""

    key = serializers.CharField(max_length=KEY_LONGEST)
    value = serializers.CharField(required=False, allow_blank=True, max_length=KEY_LONGEST)
    effect = serializers.ChoiceField(choices=TAINT_EFFECTS)


class NodeShapeSchema(serializers.Serializer[Any]):
    """One node of a scenario."""

    name = serializers.CharField(required=False, max_length=253, help_text="if given, the same as in the address")
    labels = LabelsField(required=False)
    taints = serializers.ListField(child=TaintSchema(), required=False, max_length=TAINTS_MOST, help_text=ONLY_WHAT_IF)
    unschedulable = serializers.BooleanField(required=False, help_text=ONLY_WHAT_IF)
    mode = serializers.ChoiceField(choices=Mode.values, required=False, help_text="if left out, that of the label")
    devices = serializers.ListField(child=DeviceShapeSchema(), required=False, max_length=DEVICES_MOST)
    links = serializers.ListField(child=LinkField(), required=False)
    types = serializers.ListField(
        child=serializers.CharField(max_length=TYPE_LONGEST),
        required=False,
        help_text="device types that this source reports; devices of others stay as they are. Left out: all",
    )


class InventorySchema(NodeShapeSchema):
    """One node of a scenario, its devices always stated."""

    devices = serializers.ListField(child=DeviceShapeSchema(), max_length=DEVICES_MOST)
