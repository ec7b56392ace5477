"""REST of devices: `devices/`, and a device as its node shows it.

Everybody who is signed in sees devices; of who holds them only what the caller may see.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.actors import Actor
from allocations.choices import State
from allocations.selectors import device_holders
from gpuplane.fresh_samples import fresh_samples
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import NameFilter, filters
from nodes.choices import Presence
from nodes.live.samples import SampleView
from nodes.models import Device, Node
from nodes.selectors import device_list


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
    memory_used = serializers.IntegerField(allow_null=True, help_text="bytes, allocated by the ledger")
    memory_releasing = serializers.IntegerField(
        allow_null=True, help_text="bytes of what is allocated whose holders are being released"
    )
    memory_measured = serializers.IntegerField(
        allow_null=True, help_text="bytes in use, as measured; null where that is not known now"
    )
    memory_free = serializers.IntegerField(allow_null=True, help_text="bytes")
    stranger = serializers.CharField(allow_blank=True, help_text="who holds it outside the ledger")
    conflict = serializers.CharField(
        allow_blank=True,
        help_text="pods that run with it although the ledger gave it away; given to nobody new meanwhile",
    )
    reservation = serializers.CharField(
        allow_null=True, help_text="the group (`reservations/`) whose reservation pod has it, or is about to"
    )
    closed = serializers.CharField(allow_blank=True, help_text="why nobody new gets it; empty where somebody may")
    mig = serializers.BooleanField(help_text="a GPU in MIG mode: only its instances are given to pods")
    parent = serializers.CharField(  # type: ignore[assignment]  # a field of that name, as declared
        allow_null=True, help_text="of a MIG instance: UUID of its GPU"
    )
    profile = serializers.CharField(allow_null=True, help_text="of a MIG instance: 1g.10gb")
    holders = HolderSchema(many=True)
    changed_at = serializers.DateTimeField()


class DeviceFilters(serializers.Serializer[Any]):
    """Query of `devices/`."""

    node = NameFilter("node__name")
    type = serializers.CharField(required=False, max_length=32)
    model = serializers.CharField(required=False, max_length=64)
    uuid = serializers.CharField(required=False, max_length=128)
    healthy = serializers.BooleanField(required=False, allow_null=True, default=None)
    held = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="wholly or in part")
    presence = serializers.ChoiceField(choices=[Presence.PRESENT, Presence.VANISHED], required=False)


@extend_schema_view(
    list=extend_schema(
        summary="Devices, with what is used and by whom",
        parameters=[DeviceFilters],
        responses=DeviceSchema(many=True),
    ),
)
class DeviceViewSet(GenericViewSet[Device]):
    """Devices of all nodes."""

    queryset = Device.objects.none()
    ordering = ("id",)

    def list(self, request: Request) -> Response:
        """Devices that match."""
        columns = filters(DeviceFilters, request)
        held = columns.pop("held", None)
        page = self.paginate_queryset(device_list(held=held).filter(**columns)) or []
        actor = request_actor(request)
        holders, samples = device_holders(page, actor), fresh_samples()
        rows = [
            device_row(device, device.node, holders.get(device.pk, []), actor, samples.get(device.node.name))
            for device in page
        ]
        return self.get_paginated_response(rows)


def _flapping(device: Device) -> dict[str, Any] | None:
    """How its health flaps, None where it does not."""
    if device.health_said is None:
        return None
    return {"changes": device.flaps, "since": device.flaps_since, "reported": device.health_said}


def device_row(
    device: Device, node: Node, holders: list[dict[str, Any]], actor: Actor, sample: SampleView | None
) -> dict[str, Any]:
    """A device as REST shows it. Core in percent, memory in bytes, null where the type has none. `sample`: its node's,
    if fresh.
    """
    has_memory = device.memory_bytes > 0
    releasing = sum(holder["memory"] for holder in holders if holder["state"] == State.RELEASING)
    measured = (None if sample is None else sample.of(device.uuid)) or {}
    return {
        "uid": device.uuid,
        "uuid": device.uuid,
        "node": node.name,
        "type": device.type,
        "minor": device.minor,
        "model": device.model,
        "numa": device.numa if device.numa >= 0 else None,
        "pcie": device.pcie,
        "busid": device.bus_id,
        "island": device.island if device.island >= 0 else None,
        "healthy": device.healthy,
        "health_reason": device.health_reason,
        "flapping": _flapping(device),
        "presence": device.presence,
        "core_used": device.core_used,
        "core_free": 100 - device.core_used,
        "memory": device.memory_bytes if has_memory else None,
        "memory_used": device.memory_used if has_memory else None,
        "memory_releasing": releasing if has_memory else None,
        "memory_measured": measured.get("memory_used_bytes"),
        "memory_free": device.memory_bytes - device.memory_used if has_memory else None,
        "stranger": device.stranger if actor.namespaces is None or not device.stranger else "somebody outside gpuplane",
        "conflict": device.conflict if actor.namespaces is None or not device.conflict else "pods of other teams",
        "reservation": device.gpu_group or None,
        "closed": device.closed if actor.namespaces is None or not device.closed else "a running pod has it, or may",
        "mig": device.mig,
        "parent": device.parent or None,
        "profile": device.profile or None,
        "holders": holders,
        "changed_at": device.changed_at,
    }
