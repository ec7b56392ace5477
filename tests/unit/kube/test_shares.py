from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from kube import leases, shares
from kube.client import Cluster
from kube.errors import AlreadyExists, OutcomeUnknown
from kube.keys import SHARED_HOLDER, SHARERS
from tests.fakes.apiserver import ApiServer, Fault

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WHERE: dict[str, Any] = {"namespace": "gpuplane-system", "name": "gpu-n1-0"}
KEY = ("gpuplane-system", "gpu-n1-0")


def _join(cluster: Cluster, sharer: str) -> leases.Lease:
    return cluster.run(shares.join(cluster, **WHERE, sharer=sharer, now=NOW, node="n1", device_uuid="GPU-1"))


def _sharers(cluster: Cluster) -> tuple[str, ...]:
    found = cluster.run(leases.find(cluster, **WHERE))
    assert found is not None
    return found.sharers


def test_sharers_come_and_go_and_the_last_one_out_deletes(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 one Lease stands for all sharers of a device."""
    assert _join(cluster, "a/p/1").sharers == ("a/p/1",)
    assert _join(cluster, "a/p/2").sharers == ("a/p/1", "a/p/2")
    assert _join(cluster, "a/p/2").sharers == ("a/p/1", "a/p/2")  # twice is once
    assert server.leases[KEY]["spec"]["holderIdentity"] == SHARED_HOLDER
    left = cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/1"))
    assert left is not None
    assert left.sharers == ("a/p/2",)
    assert cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/9")) == left  # never was one
    assert cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/2")) is None
    assert cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/2")) is None
    assert KEY not in server.leases


@pytest.mark.parametrize(
    ("holder", "annotations"),
    [
        pytest.param("a/p/1", {}, id="held whole"),
        pytest.param(SHARED_HOLDER, {SHARERS: "by hand"}, id="a list that cannot be read"),
    ],
)
def test_a_external_holders_lease_is_not_joined_and_not_left(
    server: ApiServer, cluster: Cluster, holder: str, annotations: dict[str, str]
) -> None:
    stored = server.add_lease("gpu-n1-0", holder, annotations=annotations)
    with pytest.raises(AlreadyExists):
        _join(cluster, "a/p/2")
    cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/2"))
    assert server.leases[KEY] == stored


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("already", [0, 1])
def test_join_and_leave_may_be_repeated_after_a_lost_answer(
    server: ApiServer, cluster: Cluster, drop: str, already: int
) -> None:
    cluster.run(leases.ensure_namespace(cluster, name="gpuplane-system"))
    others = [f"a/other/{number}" for number in range(already)]
    for other in others:
        _join(cluster, other)
    server.faults.append(Fault("POST|PUT", "leases", drop=drop))  # type: ignore[arg-type]  # a table
    with pytest.raises(OutcomeUnknown):
        _join(cluster, "a/p/1")
    assert _join(cluster, "a/p/1").sharers == (*others, "a/p/1")
    server.faults.append(Fault("PUT|DELETE", "leases", drop=drop))  # type: ignore[arg-type]  # a table
    try:
        cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/1"))
    except OutcomeUnknown:
        cluster.run(shares.leave(cluster, **WHERE, sharer="a/p/1"))
    left = cluster.run(leases.find(cluster, **WHERE))
    assert (left.sharers if left else ()) == tuple(others)


def test_no_sharer_is_lost_in_a_race(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-2 sharers that join and leave at once never overwrite each other."""
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda number: _join(cluster, f"a/p/{number:02}"), range(12)))
        assert _sharers(cluster) == tuple(f"a/p/{number:02}" for number in range(12))
        list(
            threads.map(
                lambda number: cluster.run(shares.leave(cluster, **WHERE, sharer=f"a/p/{number:02}")), range(0, 12, 2)
            )
        )
        assert _sharers(cluster) == tuple(f"a/p/{number:02}" for number in range(1, 12, 2))
        list(
            threads.map(
                lambda number: cluster.run(shares.leave(cluster, **WHERE, sharer=f"a/p/{number:02}")), range(1, 12, 2)
            )
        )
    assert KEY not in server.leases
