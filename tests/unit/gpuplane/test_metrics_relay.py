"""What workers count reaches Redis, once each, whatever becomes of Redis and of them."""

from __future__ import annotations

import threading

import pytest
import redis
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from gpuplane import metrics_relay
from gpuplane.metrics_relay import KEY, Relay, relayed
from storage.redis_client import Purpose, Redis, client


def connect(url: str) -> Redis:
    return client(url, Purpose.WORK)


class Worker:
    """A process with counters of its own."""

    def __init__(self, url: str, buckets: tuple[float, ...] = (0.5, 5, 10)) -> None:
        self.registry = registry = CollectorRegistry()
        self.done = Counter("gpuplane_done", "Done", ["what"], registry=registry)
        self.seconds = Histogram("gpuplane_took_seconds", "Took", buckets=buckets, registry=registry)
        self.state = Gauge("gpuplane_state", "A matter of one process", registry=registry)
        self.foreign = Counter("python_things", "Somebody else's", registry=registry)
        self.relay = Relay(connect(url), registry)


def told(url: str) -> dict[tuple[str, ...], float]:
    """(sample name, label values) → value."""
    text = relayed(connect(url))
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_workers_add_up(redis_url: str) -> None:
    """VIEW-5 one set of series for all workers; a new process goes on where others left; gauges stay at home."""
    one, other = Worker(redis_url), Worker(redis_url)
    one.done.labels("a").inc(0)
    one.relay.send()
    assert told(redis_url)["gpuplane_done_total", "a"] == 0, "there from the start, so that the first is an increase"
    one.done.labels("a").inc(2)
    other.done.labels("a").inc()
    other.done.labels("b").inc()
    one.seconds.observe(7)
    one.state.set(5)
    one.foreign.inc()
    for _ in range(2):
        one.relay.send()
        other.relay.send()
    Worker(redis_url).relay.send()
    assert told(redis_url) == {
        ("gpuplane_done_total", "a"): 3,
        ("gpuplane_done_total", "b"): 1,
        ("gpuplane_took_seconds_bucket", "0.5"): 0,
        ("gpuplane_took_seconds_bucket", "5.0"): 0,
        ("gpuplane_took_seconds_bucket", "10.0"): 1,
        ("gpuplane_took_seconds_bucket", "+Inf"): 1,
        ("gpuplane_took_seconds_count",): 1,
        ("gpuplane_took_seconds_sum",): 7,
    }


def test_buckets_come_in_their_order(redis_url: str) -> None:
    worker = Worker(redis_url)
    worker.seconds.observe(1)
    worker.relay.send()
    lines = [line for line in relayed(connect(redis_url)).splitlines() if "_bucket" in line]
    assert [line.split('"')[1] for line in lines] == ["0.5", "5.0", "10.0", "+Inf"]


def test_while_redis_is_away_it_stays_counted(redis_url: str) -> None:
    worker = Worker("unix:///nonexistent/redis.sock")
    worker.done.labels("a").inc(3)
    with pytest.raises(redis.ConnectionError):
        worker.relay.send()
    assert relayed(connect("unix:///nonexistent/redis.sock")) == ""
    worker.relay._client = connect(redis_url)
    worker.done.labels("a").inc()
    worker.relay.send()
    assert told(redis_url)["gpuplane_done_total", "a"] == 4


def test_a_worker_that_ends_sends_the_rest(redis_url: str) -> None:
    worker = Worker(redis_url)
    worker.relay.start()
    worker.done.labels("a").inc()
    worker.relay.stop()
    assert told(redis_url)["gpuplane_done_total", "a"] == 1


def test_redis_that_lost_everything_counts_from_nothing(redis_url: str) -> None:
    worker = Worker(redis_url)
    worker.done.labels("a").inc(5)
    worker.relay.send()
    connect(redis_url).flushall()
    worker.done.labels("a").inc()
    worker.relay.send()
    assert told(redis_url)["gpuplane_done_total", "a"] == 1


def test_series_that_stand_still_come_again_when_redis_lost_everything(redis_url: str) -> None:
    """VIEW-5 of every worker, by 0: a histogram without its lower buckets has other quantiles."""
    one, other = Worker(redis_url), Worker(redis_url)
    one.done.labels("a").inc()
    other.done.labels("b").inc()
    one.seconds.observe(7)
    for worker in (one, other):
        worker.relay.send()
    connect(redis_url).delete(KEY)
    one.seconds.observe(7)
    for worker in (one, other):
        worker.relay.send()
    found = told(redis_url)
    assert (found["gpuplane_done_total", "a"], found["gpuplane_done_total", "b"]) == (0, 0)
    assert [found["gpuplane_took_seconds_bucket", limit] for limit in ("0.5", "5.0", "10.0", "+Inf")] == [0, 0, 1, 1]


def test_a_family_whose_first_series_comes_later(redis_url: str) -> None:
    """VIEW-5 as those by model, which begin with the first model, long after the process."""
    worker = Worker(redis_url)
    worker.relay.send()
    worker.done.labels("a").inc()
    worker.relay.send()
    assert told(redis_url)["gpuplane_done_total", "a"] == 1


def test_a_release_with_other_buckets_starts_anew(redis_url: str) -> None:
    """VIEW-5 buckets of two releases in one histogram would fall. What an old worker still counts is left out."""
    old = Worker(redis_url, (0.1, 1.0))
    for _ in range(100):
        old.seconds.observe(0.05)
    old.done.labels("a").inc()
    old.relay.send()
    before = b'["gpuplane_done","counter","gpuplane_done_total",{"what":"a"}]'
    connect(redis_url).hset(KEY, before, 5)
    new = Worker(redis_url)
    new.seconds.observe(3)
    new.relay.send()
    old.seconds.observe(0.05)
    old.relay.send()
    found = told(redis_url)
    assert {key[1]: value for key, value in found.items() if key[0].endswith("_bucket")} == {
        "0.5": 0,
        "5.0": 1,
        "10.0": 1,
        "+Inf": 1,
    }
    assert found["gpuplane_done_total", "a"] == 1
    assert not connect(redis_url).hexists(KEY, before), "a field as an older release wrote it"


def test_a_defect_does_not_end_the_thread(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-5 a collector that failed once ended the relay for as long as the worker lived."""
    monkeypatch.setattr(metrics_relay, "SECONDS", 0.02)
    worker = Worker(redis_url)
    collect, failed, sent = worker.registry.collect, threading.Event(), threading.Event()

    def once_not() -> object:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a collector failed")
        sent.set()
        return collect()

    monkeypatch.setattr(worker.registry, "collect", once_not)
    worker.done.labels("a").inc(3)
    worker.relay.start()
    assert sent.wait(30)
    worker.relay.stop()
    assert told(redis_url)["gpuplane_done_total", "a"] == 3
