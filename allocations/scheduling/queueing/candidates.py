"""The nodes on which filter may place a pod that the queues have admitted, and the models of its GPUs there.

Invariants: where kube-scheduler offers the node of the hold, it is that node. Otherwise (CPU or volumes exclude it) the
pod may move to nodes whose GPUs are of the same models, and within the value of the label that its gang requires. On
any node it gets GPUs of the models that it holds, since quotas are by model; one that holds GPUs of several quotas
keeps these.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from allocations.engine.snapshot import Snapshot
from allocations.ledger import Live
from claims.choices import Phase
from claims.dialects.request import DeviceRequest
from claims.membership import Membership
from claims.models import GpuGang
from claims.queue_manifests import parse_gang_spec
from claims.queues import DIRECTORY, FRESH_SECONDS
from kube.device_types import GPU
from kube.keys import HOSTNAME_LABEL
from nodes.models import Node


def admitted_candidates(
    snapshot: Snapshot, rows: Sequence[int], *, held: str, membership: Membership, namespace: str
) -> list[int]:
    """Those of these node rows where the pod may go. `held`: the node of its hold."""
    own = snapshot.node_index.get(held)
    if own is None or own in rows:
        return [] if own is None else [own]
    models = _models(snapshot, own)
    able = [row for row in rows if _models(snapshot, row) <= models]
    label = _required_label(membership, namespace)
    if not label or not able:
        return able
    names = [snapshot.node_names[row] for row in (own, *able)]
    rows_of_nodes = Node.objects.filter(name__in=names).values_list("name", "labels")
    values = {name: ({HOSTNAME_LABEL: name} | labels).get(label, "") for name, labels in rows_of_nodes}
    value = values.get(held, "")
    return [row for row in able if value and values.get(snapshot.node_names[row]) == value]


def admitted_request(snapshot: Snapshot, held: Live, request: DeviceRequest) -> DeviceRequest:
    """The request for GPUs of the models of `held` alone, which the pod's admission has counted.

    Where all GPUs of its node are of one model, so are those of every node to which the pod may move.
    """
    own = snapshot.node_index.get(held.node)
    if own is not None and len(_models(snapshot, own)) < 2:
        return request
    rows = snapshot.index.rows_of([grant.device_id for grant in held.grants if grant.type == GPU])
    models = {snapshot.models[code] for code in snapshot.device_model[rows[rows >= 0]].tolist()}
    if not models:
        return request
    asks = []
    for ask in request.asks:
        wanted = {model.casefold() for model in ask.models}
        able = tuple(sorted(model for model in models if not wanted or model.casefold() in wanted))
        asks.append(msgspec.structs.replace(ask, models=able or ask.models) if ask.type == GPU else ask)
    return msgspec.structs.replace(request, asks=tuple(asks))


def others_of_mix(snapshot: Snapshot, held: Live) -> list[int]:
    """Ids of the GPUs of its models beside `held`, where these count in several quotas; none where they count in one.

    On those the pod could hold more of one quota than its admission has counted.
    """
    own = [grant.device_id for grant in held.grants if grant.type == GPU]
    rows = snapshot.index.rows_of(own)
    codes = set(snapshot.device_model[rows[rows >= 0]].tolist())
    if len(codes) < 2:
        return []
    tree = DIRECTORY.get(FRESH_SECONDS).tree
    if len({tree.group_of(snapshot.models[code]) for code in codes}) < 2:
        return []
    ids: list[int] = snapshot.device_id[np.isin(snapshot.device_model, list(codes))].tolist()
    return sorted(set(ids).difference(own))


def _models(snapshot: Snapshot, row: int) -> set[int]:
    return set(np.unique(snapshot.device_model[snapshot.rows_of_node(row)]).tolist())


def _required_label(membership: Membership, namespace: str) -> str:
    """The label of which the gang needs one value, empty without one."""
    if not membership.gang:
        return ""
    row = GpuGang.objects.filter(namespace=namespace, name=membership.gang).exclude(phase=Phase.INVALID).first()
    topology = parse_gang_spec(row.spec).topology if row is not None else None
    return (topology.required or "") if topology is not None else ""
