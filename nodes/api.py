"""REST of what exists: `nodes/` and `devices/`.

Everybody who is signed in sees nodes and devices; who holds a device comes from above (`holders`,
given by `gpuplane.rest.urls`), already limited to what the caller sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.actors import Actor
from access.authentication import request_actor
from access.choices import TokenScope
from access.errors import BadInput, NotFound
from audit.clock import database_now
from kube.names import InvalidName, check_subdomain
from nodes.choices import Mode, NodeState, Presence
from nodes.disputes import disputed_of
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.schemas import DeviceSchema, InventorySchema, NodeDetailSchema, NodeSchema
from nodes.selectors import device_list, node_devices, node_get, node_list
from nodes.services import inventory_put, node_remove, require_inventory_writer

Holders = Callable[[Iterable[Device], Actor], Mapping[int, list[dict[str, Any]]]]
"""(devices, who asks) → device id → its holders, in one query."""


def nobody(devices: Iterable[Device], actor: Actor) -> Mapping[int, list[dict[str, Any]]]:  # noqa: ARG001 - shape of Holders
    """No holders are known here."""
    return {}


class NodeFilters(serializers.Serializer[Any]):
    """Query of `nodes/`."""

    state = serializers.ChoiceField(choices=NodeState.choices, required=False)
    mode = serializers.ChoiceField(choices=Mode.choices, required=False)


class DeviceFilters(serializers.Serializer[Any]):
    """Query of `devices/`."""

    node = serializers.CharField(required=False, max_length=253)
    type = serializers.CharField(required=False, max_length=32)
    model = serializers.CharField(required=False, max_length=64)
    uuid = serializers.CharField(required=False, max_length=128)
    healthy = serializers.BooleanField(required=False, allow_null=True, default=None)
    held = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="wholly or in part")
    presence = serializers.ChoiceField(choices=[Presence.PRESENT, Presence.VANISHED], required=False)


NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the node")


@extend_schema_view(
    list=extend_schema(summary="Nodes", parameters=[NodeFilters], responses=NodeSchema(many=True)),
    retrieve=extend_schema(summary="One node with its devices", parameters=[NAME], responses=NodeDetailSchema),
)
class NodeViewSet(GenericViewSet[Node]):
    """Nodes."""

    queryset = Node.objects.none()
    ordering = ("name",)
    holders: Holders = staticmethod(nobody)
    machine_scope = {"inventory": TokenScope.INVENTORY}

    def list(self, request: Request) -> Response:
        """Nodes that match, by name."""
        filters = checked(NodeFilters, request)
        nodes = node_list().filter(**{key: value for key, value in filters.items() if value})
        page = self.paginate_queryset(nodes)
        return self.get_paginated_response([node_row(node) for node in page or ()])

    def retrieve(self, request: Request, name: str) -> Response:
        """One node."""
        return Response(self._detail(name, request))

    @extend_schema(
        summary="Make the node's devices and links exactly these",
        description="An unknown node is registered (201). The same body twice changes nothing. "
        "A device left out is marked vanished while somebody holds it, else removed.",
        parameters=[NAME],
        request=InventorySchema,
        responses={200: NodeDetailSchema, 201: NodeDetailSchema},
    )
    def inventory(self, request: Request, name: str) -> Response:
        """Inventory by PUT."""
        actor = request_actor(request)
        require_inventory_writer(actor, node=name)
        if isinstance(request.data, Mapping) and request.data.get("devices") is None:
            # in a scenario it may be left out; here that would take every device away
            raise BadInput("devices is required; write [] for a node without any", field="devices", rule="required")
        shape = parse_node(request.data, name=known_name(name))
        _, created = inventory_put(shape=shape, actor=actor, now=database_now())
        return Response(self._detail(name, request), status=201 if created else 200)

    @extend_schema(summary="Take the node out", parameters=[NAME], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Refused while any of its devices is held."""
        actor = request_actor(request)
        actor.require_admin()
        node_remove(node=node_get(known_name(name)), actor=actor, now=database_now())
        return Response(status=204)

    def _detail(self, name: str, request: Request) -> dict[str, Any]:
        node = node_get(known_name(name))
        devices = list(node_devices(node))
        holders = self.holders(devices, request_actor(request))
        rows = [device_row(device, node, holders.get(device.pk, []), request_actor(request)) for device in devices]
        disputed = [msgspec.to_builtins(one) for one in disputed_of(node)]
        return {**node_row(node), "links": node.links, "inventory": rows, "disputed": disputed}


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
    holders: Holders = staticmethod(nobody)

    def list(self, request: Request) -> Response:
        """Devices that match."""
        filters = checked(DeviceFilters, request)
        held = filters.pop("held", None)
        node = filters.pop("node", None)
        devices = device_list(held=held).filter(
            **{key: value for key, value in filters.items() if value not in (None, "")}
        )
        if node:
            devices = devices.filter(node__name=node)
        page = self.paginate_queryset(devices) or []
        actor = request_actor(request)
        holders = self.holders(page, actor)
        return self.get_paginated_response(
            [device_row(device, device.node, holders.get(device.pk, []), actor) for device in page]
        )


def checked(filters: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    """The query's filters. Raises ValidationError, which is a 400."""
    form = filters(data=request.query_params)
    form.is_valid(raise_exception=True)
    return dict(form.validated_data)


def known_name(name: str) -> str:
    """The name, if a node can have it. Raises NotFound."""
    try:
        return check_subdomain(name)
    except InvalidName as error:
        raise NotFound("there is no such node") from error


def node_row(node: Node) -> dict[str, Any]:
    """A node as lists show it; `devices`, `healthy` and `held` are counts."""
    return {
        "name": node.name,
        "mode": node.mode,
        "labels": node.labels,
        "state": node.state,
        "problem": node.problem,
        "devices": node.device_count,  # type: ignore[attr-defined]  # annotated by node_list
        "healthy": node.healthy_count,  # type: ignore[attr-defined]  # annotated by node_list
        "held": node.held_count,  # type: ignore[attr-defined]  # annotated by node_list
        "agent_seen_at": node.agent_seen_at,
        "registered_at": node.registered_at,
        "changed_at": node.changed_at,
    }


def _flapping(device: Device) -> dict[str, Any] | None:
    """How its health flaps, None where it does not."""
    if device.health_said is None:
        return None
    return {"changes": device.flaps, "since": device.flaps_since, "reported": device.health_said}


def device_row(device: Device, node: Node, holders: list[dict[str, Any]], actor: Actor) -> dict[str, Any]:
    """A device as REST shows it. Core in percent, memory in bytes, null where the type has none."""
    has_memory = device.memory_bytes > 0
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
        "memory_free": device.memory_bytes - device.memory_used if has_memory else None,
        "stranger": device.stranger if actor.namespaces is None or not device.stranger else "somebody outside gpuplane",
        "conflict": device.conflict if actor.namespaces is None or not device.conflict else "pods of other teams",
        "closed": device.closed if actor.namespaces is None or not device.closed else "a running pod has it, or may",
        "mig": device.mig,
        "parent": device.parent or None,
        "profile": device.profile or None,
        "holders": holders,
        "changed_at": device.changed_at,
    }
