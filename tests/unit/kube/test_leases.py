from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube import leases
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, NotFoundInCluster, OutcomeUnknown
from kube.keys import SHARED_HOLDER, SHARERS
from kube.leases import Lease, sharers_text
from kube.objects import Named
from kube.resources import LEASES
from tests.fakes import apikinds
from tests.fakes.apiserver import ApiServer, Fault

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
NS = "gpuplane-system"
KEY = (NS, "gpu-n1-0")


def _create(cluster: Cluster, holder: str = "a/train/u1", **options: object) -> Lease:
    asked: dict[str, Any] = {"namespace": NS, "name": "gpu-n1-0", "holder": holder, "now": NOW, **options}
    return cluster.run(leases.create(cluster, **asked))


def test_create_makes_the_namespace_and_names_what_is_locked(server: ApiServer, cluster: Cluster) -> None:
    lease = _create(cluster, node="n1", device_uuid="GPU-8a56")
    stored = server.leases[KEY]
    assert stored["spec"] == {"holderIdentity": "a/train/u1", "acquireTime": "2026-03-01T12:00:00.123456Z"}
    assert stored["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "gpuplane",
        "gpu.scheduling/node": "n1",
        "gpu.scheduling/device-uuid": "GPU-8a56",
    }
    assert (lease.node, lease.device_uuid, lease.acquire_time, lease.ours) == ("n1", "GPU-8a56", NOW, True)
    assert (lease.uid, lease.resource_version) == (stored["metadata"]["uid"], stored["metadata"]["resourceVersion"])
    assert NS in server.namespaces


def test_names_too_long_for_a_label_stay_in_the_annotation(server: ApiServer, cluster: Cluster) -> None:
    node = "n" * 70
    lease = _create(cluster, node=node, device_uuid="GPU:odd/uuid")
    assert (lease.node, lease.device_uuid) == (node, "GPU:odd/uuid")
    assert lease.labels == {"app.kubernetes.io/managed-by": "gpuplane"}


def test_the_second_creator_is_refused(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 create succeeds for one; for a stranger it exists already, and stays as it is."""
    first = _create(cluster)
    with pytest.raises(AlreadyExists):
        _create(cluster, "b/other/u2")
    assert cluster.run(leases.find(cluster, namespace=NS, name="gpu-n1-0")) == first


def test_of_many_creators_one_wins(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 however many race for a device, one has it."""

    def attempt(number: int) -> bool:
        try:
            _create(cluster, f"a/p{number}/u{number}")
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(attempt, range(40))) == 1


def test_a_create_whose_answer_was_lost_is_found_to_be_ours(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 already exists with our own identity means ours."""
    cluster.run(leases.ensure_namespace(cluster, name=NS))
    server.faults.append(Fault("POST", "leases", drop="after"))
    with pytest.raises(OutcomeUnknown):
        _create(cluster)
    mine = cluster.run(leases.ensure(cluster, namespace=NS, name="gpu-n1-0", holder="a/train/u1", now=NOW))
    assert mine.uid == server.leases[KEY]["metadata"]["uid"]
    with pytest.raises(AlreadyExists):
        cluster.run(leases.ensure(cluster, namespace=NS, name="gpu-n1-0", holder="a/train/u2", now=NOW))


def test_a_shared_lease_is_nobodys_own(server: ApiServer, cluster: Cluster) -> None:
    _create(cluster, SHARED_HOLDER, sharers=("a/p/u",))
    with pytest.raises(AlreadyExists):
        cluster.run(leases.ensure(cluster, namespace=NS, name="gpu-n1-0", holder=SHARED_HOLDER, now=NOW))


def test_replace_is_refused_when_somebody_wrote_in_between(server: ApiServer, cluster: Cluster) -> None:
    _create(cluster, SHARED_HOLDER, sharers=("a/p/1",))
    note = {"metadata": {"annotations": {"note": "kept"}}}
    cluster.patch(LEASES.path(namespace=NS, name="gpu-n1-0"), note, Named)
    read = cluster.run(leases.find(cluster, namespace=NS, name="gpu-n1-0"))
    assert read is not None
    newer = cluster.run(leases.replace_sharers(cluster, read, ("a/p/1", "a/p/2")))
    assert newer.sharers == ("a/p/1", "a/p/2")
    assert newer.annotations["note"] == "kept"
    assert (newer.uid, newer.acquire_time, newer.ours) == (read.uid, NOW, True)
    with pytest.raises(ConflictInCluster):
        cluster.run(leases.replace_sharers(cluster, read, ("a/p/3",)))
    assert cluster.run(leases.find(cluster, namespace=NS, name="gpu-n1-0")) == newer


def test_replace_of_a_lease_that_was_made_anew_is_refused(server: ApiServer, cluster: Cluster) -> None:
    read = _create(cluster)
    cluster.run(leases.delete(cluster, namespace=NS, name="gpu-n1-0", uid=read.uid))
    with pytest.raises((ConflictInCluster, NotFoundInCluster)):
        cluster.run(leases.replace_sharers(cluster, read, ("x",)))
    anew = _create(cluster, "b/other/u2")
    with pytest.raises(ConflictInCluster):
        cluster.run(leases.replace_sharers(cluster, read, ("x",)))
    assert cluster.run(leases.find(cluster, namespace=NS, name="gpu-n1-0")) == anew


def test_delete_counts_what_is_gone_and_spares_an_external_holder(server: ApiServer, cluster: Cluster) -> None:
    mine = _create(cluster)
    server.faults.append(Fault("DELETE", "leases", drop="after"))
    assert (
        cluster.run(leases.delete(cluster, namespace=NS, name="gpu-n1-0", uid=mine.uid)) is False
    )  # the lost attempt did it
    _create(cluster, "b/other/u2")
    with pytest.raises(ConflictInCluster):
        cluster.run(leases.delete(cluster, namespace=NS, name="gpu-n1-0", uid=mine.uid))
    assert server.leases[KEY]["spec"]["holderIdentity"] == "b/other/u2"


def test_delete_under_a_resource_version_is_refused_after_a_write(server: ApiServer, cluster: Cluster) -> None:
    read = _create(cluster, SHARED_HOLDER, sharers=("a/p/1",))
    cluster.run(leases.replace_sharers(cluster, read, ("a/p/1", "a/p/2")))
    with pytest.raises(ConflictInCluster):
        cluster.run(
            leases.delete(cluster, namespace=NS, name="gpu-n1-0", uid=read.uid, resource_version=read.resource_version)
        )
    assert KEY in server.leases


def test_list_shows_external_holders_unless_asked_otherwise(server: ApiServer, cluster: Cluster) -> None:
    _create(cluster)
    server.add_lease("gpu-n1-1", "somebody")
    assert [lease.name for lease in leases.list_all(cluster, namespace=NS)] == ["gpu-n1-0", "gpu-n1-1"]
    assert [lease.name for lease in leases.list_all(cluster, namespace=NS, ours_only=True)] == ["gpu-n1-0"]
    assert cluster.run(leases.find(cluster, namespace=NS, name="gpu-n1-7")) is None


def test_a_lease_that_cannot_be_read_is_somebody_elses(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 it is there, so its device is taken; and it is not ours to delete, whatever its labels say."""
    mine = _create(cluster)
    labels = server.leases[KEY]["metadata"]["labels"]
    meta = {"name": "gpu-n1-1", "labels": labels}
    spec = {"holderIdentity": "a/p/1", "acquireTime": "0000-01-01T00:00:00.000000Z"}  # Go has a year 0
    server.store.create(apikinds.LEASES, NS, {"metadata": meta, "spec": spec})
    read, unread = leases.list_all(cluster, namespace=NS)
    assert read == mine
    assert (unread.namespace, unread.name, unread.holder_identity) == (NS, "gpu-n1-1", leases.UNNAMED_HOLDER)
    assert (unread.ours, unread.shared, unread.uid) == (False, False, "")
    assert leases.list_all(cluster, namespace=NS, ours_only=True) == [mine]


@pytest.mark.parametrize(
    ("text", "want", "want_damaged"),
    [
        pytest.param('["b/x/2", "a/x/1", "b/x/2"]', ("a/x/1", "b/x/2"), False, id="sorted, no doubles"),
        pytest.param("[]", (), False, id="nobody"),
        pytest.param("a/x/1", (), True, id="not JSON"),
        pytest.param("[1]", (), True, id="not names"),
    ],
)
def test_sharers(text: str, want: tuple[str, ...], want_damaged: bool) -> None:
    lease = Lease(
        namespace=NS,
        name="l",
        holder_identity=SHARED_HOLDER,
        uid="u",
        resource_version="1",
        annotations={SHARERS: text},
    )
    assert (lease.sharers, lease.damaged) == (want, want_damaged)


@given(st.sets(st.text()))
def test_sharers_read_back(sharers: set[str]) -> None:
    lease = Lease(
        namespace=NS,
        name="l",
        holder_identity=SHARED_HOLDER,
        uid="u",
        resource_version="1",
        annotations={SHARERS: sharers_text(sharers)},
    )
    assert set(lease.sharers) == sharers


FIVE_EAST = timezone(timedelta(hours=5))


@given(st.datetimes(timezones=st.just(FIVE_EAST)).filter(lambda moment: 1 < moment.year < 9999))
def test_micro_time_has_six_digits_and_reads_back(moment: datetime) -> None:
    text = leases.micro_time(moment)
    assert len(text) == len("2026-03-01T12:00:00.000000Z")
    assert datetime.fromisoformat(text) == moment
