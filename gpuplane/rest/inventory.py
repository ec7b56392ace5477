"""Schemas of inventories for the OpenAPI document: one node's devices and links, as in scenarios.

`nodes.inventory` checks inventories; a schemathesis run compares both.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gpuplane.rest.fields import LABEL_PATTERN, QuantityField, TextsField
from kube.node_rules import TAINT_EFFECTS
from nodes.choices import Mode
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


@extend_schema_field({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 3, "maxItems": 3})
class LinkField(serializers.Field[Any, Any, Any, Any]):
    """[minor, minor, NVLinks between them]."""


class DeviceShapeSchema(serializers.Serializer[Any]):
    """A device of an inventory."""

    minor = serializers.IntegerField(min_value=0, max_value=MINOR_MOST)
    type = serializers.RegexField(LABEL_PATTERN, required=False, max_length=TYPE_LONGEST)
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
    labels = TextsField(required=False)
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
