"""REST of nodes: `nodes/`, one node with its devices, and inventories by PUT.

Everybody who is signed in sees nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.choices import TokenScope
from access.errors import BadInput, NotFound
from allocations.selectors import device_holders
from gpuplane.fresh_samples import fresh_samples
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.devices import DeviceSchema, device_row
from gpuplane.rest.fields import TextsField, filters
from gpuplane.rest.inventory import InventorySchema, LinkField
from kube.names import InvalidName, check_subdomain
from nodes.choices import Mode, NodeState
from nodes.disputed_devices import disputed_of
from nodes.inventory import parse_node
from nodes.models import Node
from nodes.selectors import node_devices, node_get, node_list
from nodes.services import inventory_put, node_remove, require_inventory_writer
from storage.clock import database_now

NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the node")


class DisputedSchema(serializers.Serializer[Any]):
    """A device that a node reports and another one has."""

    uuid = serializers.CharField()
    type = serializers.CharField()
    minor = serializers.IntegerField()
    node = serializers.CharField(help_text="the one that has it")


class NodeSchema(serializers.Serializer[Any]):
    """A node; `devices`, `healthy` and `held` are counts."""

    name = serializers.CharField()
    mode = serializers.ChoiceField(choices=Mode.values)
    labels = TextsField()
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


class NodeFilters(serializers.Serializer[Any]):
    """Query of `nodes/`."""

    state = serializers.ChoiceField(choices=NodeState.choices, required=False)
    mode = serializers.ChoiceField(choices=Mode.choices, required=False)


@extend_schema_view(
    list=extend_schema(summary="Nodes", parameters=[NodeFilters], responses=NodeSchema(many=True)),
    retrieve=extend_schema(summary="One node with its devices", parameters=[NAME], responses=NodeDetailSchema),
)
class NodeViewSet(GenericViewSet[Node]):
    """Nodes."""

    queryset = Node.objects.none()
    ordering = ("name",)
    machine_scope = {"inventory": TokenScope.INVENTORY}

    def list(self, request: Request) -> Response:
        """Nodes that match, by name."""
        page = self.paginate_queryset(node_list().filter(**filters(NodeFilters, request))) or []
        return self.get_paginated_response([node_row(node) for node in page])

    def retrieve(self, request: Request, name: str) -> Response:
        """One node."""
        return Response(_detail(name, request))

    @extend_schema(
        summary="Make the node's devices and links exactly these",
        description=(
            "An unknown node is registered (201). The same body twice changes nothing. "
            "A device left out is marked vanished while somebody holds it, else removed."
        ),
        parameters=[NAME],
        request=InventorySchema,
        responses={200: NodeDetailSchema, 201: NodeDetailSchema},
    )
    def inventory(self, request: Request, name: str) -> Response:
        """Inventory by PUT."""
        actor = request_actor(request)
        require_inventory_writer(actor, node=name)
        if isinstance(request.data, Mapping) and request.data.get("devices") is None:
            # left out, as it may be in a scenario, it would remove every device
            raise BadInput("devices is required; write [] for a node without any", field="devices", rule="required")
        shape = parse_node(request.data, name=checked_name(name))
        _, created = inventory_put(shape=shape, actor=actor, now=database_now())
        return Response(_detail(name, request), status=201 if created else 200)

    @extend_schema(summary="Take the node out", parameters=[NAME], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Refused while any of its devices is held."""
        actor = request_actor(request)
        actor.require_admin()
        node_remove(node=node_get(checked_name(name)), actor=actor, now=database_now())
        return Response(status=204)


def _detail(name: str, request: Request) -> dict[str, Any]:
    node = node_get(checked_name(name))
    devices = list(node_devices(node))
    actor = request_actor(request)
    holders = device_holders(devices, actor)
    sample = fresh_samples().get(node.name)
    rows = [device_row(device, node, holders.get(device.pk, []), actor, sample) for device in devices]
    disputed = [msgspec.to_builtins(one) for one in disputed_of(node)]
    return {**node_row(node), "links": node.links, "inventory": rows, "disputed": disputed}


def checked_name(name: str) -> str:
    """The name. Raises NotFound if no node can have it."""
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
