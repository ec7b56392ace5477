from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kube.client import Cluster
from kube.errors import Denied, NotFoundInCluster, TemporaryKubeError, Unreachable
from kube.listing import Unreadable
from kube.objects import Pod
from kube.resources import GPU_CLAIMS, NODES, PODS
from kube.watch import Bookmark, Changed, Event, ListWatch, Relisted, Stop
from tests.fakes.apiserver import ApiServer, Fault

LONG = 120.0


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, cluster_of: Callable[..., Cluster]) -> Cluster:
    """With a die that gives zero: a relist is not spread out here."""
    return cluster_of(server.kubeconfig(tmp_path / "kubeconfig"), chance=lambda: 0.0)


@pytest.fixture
def watch(cluster: Cluster) -> ListWatch[Pod]:
    return ListWatch(cluster, PODS, Pod)


def _names(event: Event[Pod]) -> object:
    if isinstance(event, Relisted):
        return sorted(name for _, name in event.keys)
    assert isinstance(event, Changed)
    return (event.type, event.key[1])


def _skip_bookmarks(events: Iterator[Event[Pod]]) -> Event[Pod]:
    return next(event for event in events if not isinstance(event, Bookmark))


def _watches(server: ApiServer) -> list[str]:
    return [seen.query.get("resourceVersion", "") for seen in server.requests if seen.query.get("watch") == "true"]


def test_list_then_every_change(server: ApiServer, watch: ListWatch[Pod]) -> None:
    server.add_pod("old")
    with closing(watch.events(seconds=LONG)) as events:
        assert _names(next(events)) == ["old"]
        server.add_pod("new")
        assert _names(next(events)) == ("ADDED", "new")
        server.set_pod_phase("new", "Running")
        changed = next(events)
        assert isinstance(changed, Changed)
        assert (changed.type, changed.object.status.phase) == ("MODIFIED", "Running")
        server.remove_pod("old")
        gone = next(events)
        assert isinstance(gone, Changed)
        assert (gone.type, gone.key, gone.object.metadata.name) == ("DELETED", ("default", "old"), "old")


def test_a_watch_asks_for_bookmarks_and_an_end(server: ApiServer, watch: ListWatch[Pod]) -> None:
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.send_bookmarks()
        server.add_pod("new")
        _skip_bookmarks(events)
    query = server.requests[-1].query
    assert query["allowWatchBookmarks"] == "true"
    assert 0 < int(query["timeoutSeconds"]) <= LONG


def test_another_worker_goes_on_where_the_watch_ended(
    server: ApiServer, cluster: Cluster, watch: ListWatch[Pod]
) -> None:
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.add_pod("seen")
        next(events)
        server.add_pod("next")
        assert _names(next(events)) == ("ADDED", "next")
    # the consumer of "next" never came back, so it is given again: at least once, never skipped
    successor = ListWatch(cluster, PODS, Pod, resource_version=watch.resource_version)
    with closing(successor.events(seconds=LONG)) as events:
        assert _names(next(events)) == ("ADDED", "next")


def test_a_bookmark_moves_the_version_past_other_peoples_changes(server: ApiServer, watch: ListWatch[Pod]) -> None:
    server.bookmark_seconds = 0.01
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.add_node("n1")
        next(
            event
            for event in events
            if isinstance(event, Bookmark) and event.resource_version == str(server.store.version)
        )
        next(events)  # the one before is taken note of when we come back
        server.compact()  # all that went before is forgotten, and we do not need it
        server.drop_connections()
        server.add_pod("new")
        assert _names(_skip_bookmarks(events)) == ("ADDED", "new")
    assert len([seen for seen in server.requests if "limit" in seen.query]) == 1


def test_a_watch_ends_by_itself_with_the_last_bookmark(server: ApiServer, watch: ListWatch[Pod]) -> None:
    server.add_pod("old")
    server.add_node("n1")
    events = list(watch.events(seconds=0.05))
    assert [type(event) for event in events] == [Relisted, Bookmark]
    assert watch.resource_version == str(server.store.version)
    assert list(watch.events(seconds=0)) == []


def test_a_watch_ends_when_its_time_is_up_however_busy(
    server: ApiServer, tmp_path: Path, cluster_of: Callable[..., Cluster]
) -> None:
    now = [0.0]
    cluster = cluster_of(server.kubeconfig(tmp_path / "k"), clock=lambda: now[0])
    watch = ListWatch(cluster, PODS, Pod)
    events = watch.events(seconds=LONG)
    next(events)
    server.add_pod("last")
    next(events)
    now[0] = LONG
    assert list(events) == []
    assert watch.resource_version == server.pods["default", "last"]["metadata"]["resourceVersion"]


@pytest.mark.parametrize("as_http", [False, True], ids=["in the stream", "as HTTP 410"])
def test_after_410_everything_is_listed_and_the_consumer_sees_what_is_gone(
    server: ApiServer, cluster: Cluster, as_http: bool
) -> None:
    """LEASE-4 what ended while nobody watched is seen in the difference."""
    server.gone_as_http = as_http
    stays, goes = server.add_pod("stays"), server.add_pod("goes")
    version = goes["metadata"]["resourceVersion"]
    known = {("default", "stays"), ("default", "goes")}
    server.remove_pod("goes")
    server.add_pod("came")
    server.compact()
    watch = ListWatch(cluster, PODS, Pod, resource_version=version)
    with closing(watch.events(seconds=LONG)) as events:
        relisted = next(events)
        assert isinstance(relisted, Relisted)
        assert known - relisted.keys == {("default", "goes")}
        assert relisted.keys - known == {("default", "came")}
        assert relisted.objects["default", "stays"].metadata.uid == stays["metadata"]["uid"]
        server.add_pod("later")
        assert _names(next(events)) == ("ADDED", "later")


def test_a_compaction_under_the_watch_leads_to_a_relist(server: ApiServer, watch: ListWatch[Pod]) -> None:
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        with server.store.changed:  # written and forgotten before the watch could send it
            server.add_pod("missed")
            server.compact()
            server.store.changed.notify_all()
        assert _names(next(events)) == ["missed"]


def test_a_broken_stream_is_resumed_without_a_list(server: ApiServer, watch: ListWatch[Pod]) -> None:
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.add_pod("one")
        next(events)
        server.drop_connections()
        server.add_pod("two")
        assert _names(next(events)) == ("ADDED", "two")
    assert len([seen for seen in server.requests if "limit" in seen.query]) == 1
    assert _watches(server)[-1] == server.pods["default", "one"]["metadata"]["resourceVersion"]


@pytest.mark.parametrize("silent", ["no answer at all", "an answer that says nothing"])
def test_silence_is_broken_by_the_read_deadline(server: ApiServer, cluster: Cluster, silent: str) -> None:
    held = threading.Event()
    if silent == "no answer at all":
        server.faults.append(Fault("GET", "watch=true", stall=held))
    else:
        server.mute_watches = 1
    watch = ListWatch(cluster, PODS, Pod, silence_seconds=0.1)
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.add_pod("heard")
        assert _names(_skip_bookmarks(events)) == ("ADDED", "heard")
    held.set()
    assert len(_watches(server)) >= 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"status": 500}, id="failed inside"),
        pytest.param({"status": 429, "headers": {"Retry-After": "0"}}, id="throttled"),
        pytest.param({"drop": "before"}, id="connection lost"),
    ],
)
def test_a_watch_that_is_refused_for_now_is_opened_again(
    server: ApiServer, watch: ListWatch[Pod], fault: dict[str, object]
) -> None:
    server.faults.append(Fault("GET", "watch=true", times=2, **fault))  # type: ignore[arg-type]  # a table
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        server.add_pod("new")
        assert _names(next(events)) == ("ADDED", "new")


def test_a_server_set_back_from_a_backup_is_listed_anew(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("kept")
    server.faults.append(Fault("GET", "watch=true", status=504, reason="Timeout", causes=("ResourceVersionTooLarge",)))
    watch = ListWatch(cluster, PODS, Pod, resource_version="999999")
    with closing(watch.events(seconds=LONG)) as events:
        assert _names(next(events)) == ["kept"]


def test_a_watch_that_ends_in_trouble_says_so(server: ApiServer, watch: ListWatch[Pod]) -> None:
    server.stop()
    with pytest.raises(Unreachable):
        list(watch.events(seconds=0.3))
    server.start()
    with closing(watch.events(seconds=LONG)) as events:
        assert _names(next(events)) == []


def test_a_watch_that_ends_at_once_again_and_again_is_broken_not_a_busy_loop(
    server: ApiServer, watch: ListWatch[Pod]
) -> None:
    server.faults.append(Fault("GET", "watch=true", status=200, times=999))
    with pytest.raises(TemporaryKubeError):
        list(watch.events(seconds=0.5))
    assert len(_watches(server)) < 6


@pytest.mark.parametrize(("status", "want"), [(403, Denied), (404, NotFoundInCluster)])
def test_permanent_errors_end_the_watch_at_once(
    server: ApiServer, watch: ListWatch[Pod], status: int, want: type[Exception]
) -> None:
    server.faults.append(Fault("GET", "watch=true", status=status))
    with pytest.raises(want):
        list(watch.events(seconds=LONG))


def test_a_stop_interrupts_a_silent_watch_at_once(server: ApiServer, watch: ListWatch[Pod]) -> None:
    reading = threading.Event()

    class Noticed(Stop):
        @contextmanager
        def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
            with super().interrupting(interrupt):
                reading.set()
                yield

    stop = Noticed()
    events = watch.events(seconds=LONG, stop=stop)
    next(events)
    seen: list[Event[Pod]] = []
    reader = threading.Thread(target=lambda: seen.extend(events))
    reader.start()
    reading.wait()
    stop.set()
    reader.join()
    assert seen == []
    assert list(watch.events(seconds=LONG, stop=stop)) == []


def test_stop_calls_each_reader_once_and_those_that_come_late() -> None:
    stop, called = Stop(), []
    with stop.interrupting(lambda: called.append("left")):
        pass
    with stop.interrupting(lambda: called.append("inside")):
        stop.set()
    with stop.interrupting(lambda: called.append("late")):
        pass
    assert called == ["inside", "late"]


def test_selectors_show_objects_come_and_go(server: ApiServer, cluster: Cluster) -> None:
    server.add_pod("mine", phase="Running")
    server.add_pod("other", phase="Pending")
    watch = ListWatch(cluster, PODS, Pod, field_selector="status.phase=Running")
    with closing(watch.events(seconds=LONG)) as events:
        assert _names(next(events)) == ["mine"]
        path = PODS.path(namespace="default", name="mine", subresource="status")
        cluster.patch(path, {"status": {"phase": "Succeeded"}}, Pod)
        assert _names(next(events)) == ("DELETED", "mine")


def test_an_object_of_another_form_is_reported_and_hides_nothing(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-6 what cannot be read is reported, never ignored."""
    server.add_node("listed", labels={"a": "b"})

    watch = ListWatch(cluster, NODES, Pod)  # a node's status.conditions fit a pod's; its spec.volumes do not
    with closing(watch.events(seconds=LONG)) as events:
        next(events)
        cluster.request(
            "PATCH",
            NODES.path(name="listed"),
            body={"spec": {"volumes": 5}},
            content_type="application/merge-patch+json",
            idempotent=True,
        )
        unreadable = next(events)
        assert isinstance(unreadable, Unreadable)
        assert (unreadable.key, "volumes" in unreadable.why) == (("", "listed"), True)
        server.remove_node("listed")
        relisted = next(events)  # its end cannot be told as an object, so everything is listed
        assert isinstance(relisted, Relisted)
        assert relisted.keys == frozenset()


def test_a_kind_that_is_not_installed_is_permanent(tmp_path: Path, cluster_of: Callable[..., Cluster]) -> None:
    with ApiServer(with_crds=False) as server, pytest.raises(NotFoundInCluster):
        list(ListWatch(cluster_of(server.kubeconfig(tmp_path / "k")), GPU_CLAIMS, Pod).events(seconds=LONG))
