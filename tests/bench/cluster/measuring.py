"""What is read while pods are being bound: when each was, the CPU time of every process, and what was asked of the API
server.

Used by `tests.bench.cluster.burst`. It shares the machine with what it measures: the watch asks for metadata only and
decodes none, CPU times are two readings of /proc, and the API server's counters are read outside the time that counts.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.controlplane.api import Api

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
ADDED = b'{"type":"ADDED"'
ERROR = b'{"type":"ERROR"'
WATCH_SECONDS = 1800
RESUMED_AT_MOST = 100
_TICKS = os.sysconf("SC_CLK_TCK")
_REQUESTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


class WatchEnded(Exception):
    """The API server ended the watch: not every binding was seen."""


class Bindings:
    """Follows the pods of a namespace that have a node; `at` are the moments at which one was seen to get it, on the
    monotonic clock.

    The API server drops a watcher that it finds too slow: then the watch goes on behind the last event, and `resumed`
    counts it.
    """

    def __init__(self, api: Api, namespace: str, *, ca: Path) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._context = ssl.create_default_context(cafile=str(ca))
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._ended = ""
        self._connection: http.client.HTTPSConnection | None = None
        self.at: list[float] = []
        self.resumed = 0

    @contextmanager
    def watching(self) -> Iterator[Bindings]:
        """Follow in a thread of its own, from now on."""
        version = self._api.get(f"{self._path}?limit=1")["metadata"]["resourceVersion"]
        answer = self._asked(version)
        thread = threading.Thread(target=self._follow, args=(answer, version), name="bindings", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()
            self._hang_up()
            thread.join(10)

    def until(self, count: int, *, silence_seconds: float) -> bool:
        """Wait for so many; False when none came for so long. Raises WatchEnded."""
        with self._changed:
            while len(self.at) < count:
                if self._ended:
                    raise WatchEnded(self._ended)
                if not self._changed.wait(silence_seconds):
                    return False
        return True

    def _asked(self, version: str) -> http.client.HTTPResponse:
        url = self._api.http.base_url
        connection = http.client.HTTPSConnection(url.host, url.port, timeout=WATCH_SECONDS, context=self._context)
        self._connection = connection
        query = f"watch=1&resourceVersion={version}&fieldSelector=spec.nodeName!%3D&timeoutSeconds={WATCH_SECONDS}"
        headers = {"Authorization": self._api.http.headers["Authorization"], "Accept": METADATA}
        connection.request("GET", f"{self._path}?{query}", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise WatchEnded(answer.read().decode(errors="replace"))
        return answer

    def _follow(self, answer: http.client.HTTPResponse, version: str) -> None:
        ended = "the API server dropped the watch too often"
        try:
            for _ in range(RESUMED_AT_MOST):
                version = self._read(answer, version)
                if self._closing.is_set():
                    return
                self.resumed += 1
                answer = self._asked(version)
        except (OSError, ValueError, http.client.HTTPException, WatchEnded) as error:
            ended = f"the watch broke: {error!r}"
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def _read(self, answer: http.client.HTTPResponse, version: str) -> str:
        """Until the stream ends; the version behind which to go on."""
        rest, last = b"", b""
        while piece := answer.read1(1 << 18):
            now = time.monotonic()
            *lines, rest = (rest + piece).split(b"\n")
            last = lines[-1] if lines else last
            if last.startswith(ERROR):
                raise WatchEnded(last.decode(errors="replace"))
            if bound := sum(line.startswith(ADDED) for line in lines):
                with self._changed:
                    self.at += [now] * bound
                    self._changed.notify_all()
        return str(json.loads(last)["object"]["metadata"]["resourceVersion"]) if last else version

    def _hang_up(self) -> None:
        """Makes a reader that waits come back."""
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time so far of each process with all it started, those that ended and were waited for
    included.
    """
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        children[int(fields[1])].append(int(place.name))
        used[int(place.name)] = sum(map(int, fields[11:15])) / _TICKS
    return {name: sum(used.get(one, 0.0) for one in _family(pid, children)) for name, pid in pids.items()}


def _family(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _family(child, children)


def requests_so_far(api: Api) -> Counter[str]:
    """Requests that the API server answered, by `VERB resource/subresource`."""
    answer = api.http.get("/metrics")
    answer.raise_for_status()
    counted: Counter[str] = Counter()
    for labels, amount in _REQUESTS.findall(answer.text):
        told = dict(_LABEL.findall(labels))
        if not told.get("code", "").startswith("2") and told.get("verb") in WRITES:
            counted["refused writes"] += int(float(amount))
            continue
        resource = "/".join(filter(None, (told.get("resource", ""), told.get("subresource", ""))))
        counted[f"{told.get('verb', '')} {resource or 'other'}"] += int(float(amount))
    return counted


def settled_requests(api: Api, *, quiet: tuple[str, ...], seconds: float = 20.0) -> Counter[str]:
    """The counters once those of `quiet` stand still: what follows a binding (events, the kubelet's word) trails behind
    it.
    """
    deadline = time.monotonic() + seconds
    found = requests_so_far(api)
    while time.monotonic() < deadline:
        time.sleep(1)  # counters announce nothing
        before, found = found, requests_so_far(api)
        if all(before[name] == found[name] for name in quiet):
            break
    return found
