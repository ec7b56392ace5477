"""The pools of a scenario: nodes that may be made. Called by `allocations.scenario.parse`. Pure.

Invariants: a pool has a name of its own and one node's shape; an unknown key of a pool, of its node or of a device is
a BadInput.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from access.errors import BadInput
from allocations.scenario.rules import traits_of
from kube.keys import NODEPOOL_LABEL
from kube.names import check_subdomain
from kube.node_rules import NodeTraits
from nodes.field_parser import bad_field, read_integer, read_list, read_name, read_object, within
from nodes.inventory import NodeShape, parse_node

POOLS_MOST: Final = 200
WEIGHT_MOST: Final = 1_000_000
NODES_MOST: Final = 1_000_000

_POOL: Final = ("name", "weight", "max", "labels", "taints", "node")
_NODE: Final = ("labels", "taints", "unschedulable", "mode", "devices", "links", "types")


class PoolShape(msgspec.Struct, frozen=True):
    """A pool. `node`: one of its nodes, with the labels and taints of all; `most`: nodes that may still be made."""

    name: str
    weight: int
    most: int | None
    node: NodeShape

    @property
    def traits(self) -> NodeTraits:
        """A node of the pool as the rules of pods see it: its name, and so its hostname, is not known yet."""
        return traits_of(self.node, named=False)


def parse_pools(value: object) -> tuple[PoolShape, ...]:
    """The pools. Raises BadInput."""
    pools: list[PoolShape] = []
    for index, entry in enumerate(read_list(value, "pools", most=POOLS_MOST)):
        path = within("pools", index)
        pool = _pool(read_object(entry, path, _POOL, strict=True), path)
        if any(pool.name == other.name for other in pools):
            raise BadInput(f"pool {pool.name} stands there twice", field=within(path, "name"), rule="duplicate")
        pools.append(pool)
    return tuple(pools)


def _pool(fields: Mapping[str, Any], path: str) -> PoolShape:
    name = read_name(fields.get("name"), within(path, "name"), check_subdomain)
    if fields.get("node") is None:
        raise bad_field(within(path, "node"), "is required", rule="required")
    about = parse_node({"name": name, "labels": fields.get("labels"), "taints": fields.get("taints")}, path=path)
    node = _node(fields["node"], within(path, "node"), name)
    most = fields.get("max")
    return PoolShape(
        name=name,
        weight=read_integer(fields.get("weight") or 0, within(path, "weight"), least=0, most=WEIGHT_MOST),
        most=None if most is None else read_integer(most, within(path, "max"), least=0, most=NODES_MOST),
        node=msgspec.structs.replace(
            node,
            labels={NODEPOOL_LABEL: name} | node.labels | about.labels,
            taints=(*about.taints, *node.taints),
        ),
    )


def _node(value: object, path: str, pool: str) -> NodeShape:
    """One node of the pool; devices without a UUID get one."""
    fields = dict(read_object(value, path, _NODE, strict=True))
    devices = fields.get("devices")
    if isinstance(devices, list):
        fields["devices"] = [
            {**device, "uuid": f"new-{at}"} if isinstance(device, dict) and device.get("uuid") is None else device
            for at, device in enumerate(devices)
        ]
    return parse_node({**fields, "name": pool}, path=path)
