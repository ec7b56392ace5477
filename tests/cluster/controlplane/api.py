"""The API server as the administrator of the cluster sees it: plain JSON over HTTP, and kubectl.

The tests' own eyes and hands: nothing of gpuplane's `kube/` is used here, so that a mistake there cannot hide itself.
"""

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.controlplane.tools import program

Json = dict[str, Any]
MERGE = "application/merge-patch+json"


class ApiRefused(Exception):
    """The API server refused; `code` and `message` are those of its Status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


REQUEST_SECONDS = 30.0
DELETE_SECONDS = 120.0
"""A whole collection is deleted one by one."""


class _SharedContext(ssl.SSLContext):
    """Verifies servers for threads that connect at once.

    The HTTP client sets the protocols again for every connection, which frees the list that another thread's handshake
    is reading. Here they are set once.
    """

    _protocols: list[str] | None = None

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Only the first time, and again where they differ."""
        listed = list(alpn_protocols)
        if listed != self._protocols:
            self._protocols = listed
            super().set_alpn_protocols(listed)


class Api:
    """One user of the API server. Paths are as in the API, without the server's address."""

    def __init__(self, *, url: str, ca: Path, token: str, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        context = _SharedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=str(ca))
        context.set_alpn_protocols(["http/1.1"])
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=32)
        self.http = httpx.Client(
            base_url=url,
            verify=context,
            headers={"Authorization": f"Bearer {token}"},
            timeout=REQUEST_SECONDS,
            limits=limits,
        )

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def request(self, method: str, path: str, body: object | None = None, *, kind: str = "application/json") -> Json:
        """The answer's JSON. Raises ApiRefused, httpx.TransportError."""
        content = None if body is None else json.dumps(body).encode()
        seconds = DELETE_SECONDS if method == "DELETE" else REQUEST_SECONDS
        answer = self.http.request(method, path, content=content, headers={"Content-Type": kind}, timeout=seconds)
        if answer.status_code >= 300:
            try:
                message = answer.json().get("message", answer.text)
            except ValueError:
                message = answer.text
            raise ApiRefused(answer.status_code, message)
        found: Json = answer.json()
        return found

    def get(self, path: str) -> Json:
        """One object."""
        return self.request("GET", path)

    def find(self, path: str) -> Json | None:
        """One object, or None where there is none."""
        try:
            return self.get(path)
        except ApiRefused as refused:
            if refused.code != 404:
                raise
            return None

    def items(self, path: str) -> list[Json]:
        """Every object of a collection."""
        found: list[Json] = self.get(path)["items"]
        return found

    def create(self, path: str, body: Json) -> Json:
        """As stored."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Json, *, kind: str = MERGE) -> Json:
        """By merge patch."""
        return self.request("PATCH", path, body, kind=kind)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> None:
        """One object or a whole collection; one that is gone already counts."""
        body = None if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.request("DELETE", path, body)
        except ApiRefused as refused:
            if refused.code != 404:
                raise

    def kubectl(self, *words: str, given: str | None = None, refused: bool = False) -> str:
        """What kubectl prints; with `refused`, what it says when it is refused.

        AssertionError when it ends otherwise.
        """
        done = subprocess.run(
            [program("kubectl"), f"--kubeconfig={self.kubeconfig}", *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if refused:
            assert done.returncode != 0, f"kubectl {' '.join(words)} was not refused: {done.stdout}"
            return done.stderr
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: Json) -> str:
        """`kubectl apply` of these objects."""
        return self.kubectl("apply", "-f", "-", given="\n---\n".join(json.dumps(one) for one in objects))


class Observer:
    """Follows a collection by a real watch and remembers each object's every version, oldest first, by
    `namespace/name/uid`.

    Only while the `with` block lasts. `until` waits for the events themselves. `heard` is when each came, by its
    resourceVersion; what was found by a list after the watch broke has no such moment.
    """

    def __init__(self, api: Api, path: str) -> None:
        self._api = api
        self._path = path
        self._changed = threading.Condition()
        self.history: dict[str, list[Json]] = {}
        self.gone: set[str] = set()
        self.heard: dict[str, datetime] = {}
        self._failure: BaseException | None = None
        self._version = ""
        self._closing = threading.Event()

    @contextmanager
    def watching(self) -> Iterator["Observer"]:
        """List, then follow in a thread of its own."""
        version = self._relist()
        thread = threading.Thread(target=self._follow, args=(version,), name=f"observer {self._path}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()
            thread.join(10)

    def _relist(self) -> str:
        listed = self._api.get(self._path)
        with self._changed:
            there = set()
            for item in listed["items"]:
                there.add(_key(item))
                versions = self.history.setdefault(_key(item), [])
                if not versions or versions[-1]["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                    versions.append(item)
            self.gone |= set(self.history) - there
            self._changed.notify_all()
        return str(listed["metadata"]["resourceVersion"])

    @property
    def now(self) -> dict[str, Json]:
        """The latest version of everything that is there."""
        with self._changed:
            return {key: versions[-1] for key, versions in self.history.items() if key not in self.gone}

    def named(self, name: str) -> list[Json]:
        """Every version of the objects of this name, oldest first."""
        with self._changed:
            return [one for versions in self.history.values() for one in versions if one["metadata"]["name"] == name]

    def until(self, true: Callable[["Observer"], object], *, seconds: float, what: str) -> float:
        """Wait until `true(self)`; the seconds that it took.

        AssertionError after `seconds`, saying what was waited for.
        """
        started = time.monotonic()
        with self._changed:
            while not true(self):
                left = started + seconds - time.monotonic()
                assert left > 0, f"after {seconds:.0f} s still not: {what}; there is {self._told()}"
                self._changed.wait(min(left, 1.0))
                if self._failure is not None:
                    raise self._failure
        return time.monotonic() - started

    def _told(self) -> str:
        """What is there, a line each, those without a node first: they tell most of why something has not happened."""
        lines = sorted((bool(one.get("spec", {}).get("nodeName")), _in_short(one)) for one in self.now.values())
        return "".join(f"\n  {line}" for _, line in lines) or "nothing"

    def _follow(self, version: str) -> None:
        while not self._closing.is_set():
            try:
                self._turn(version)
            except httpx.ReadTimeout:
                version = self._version  # nothing happened for a moment: a chance to see that we are to end
            except (httpx.HTTPError, ApiRefused):
                # the API server is being killed by the test, or the version is too old: begin anew when it answers
                version = self._again()
            except Exception as error:  # whatever it is: told to who waits, and raised again
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                raise

    def _again(self) -> str:
        while not self._closing.wait(0.2):
            try:
                return self._relist()
            except (httpx.HTTPError, ApiRefused):
                continue
        return ""

    def _turn(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
        self._version = version
        with self._api.http.stream("GET", self._path, params=query, timeout=httpx.Timeout(5, read=1)) as answer:
            if answer.status_code >= 300:
                raise ApiRefused(answer.status_code, answer.read().decode(errors="replace"))
            for line in answer.iter_lines():
                self._take(json.loads(line))
                if self._closing.is_set():
                    return
        self._version = self._relist()

    def _take(self, event: Json) -> None:
        if event["type"] == "ERROR":
            raise ApiRefused(event["object"].get("code", 0), event["object"].get("message", ""))
        key = _key(event["object"])
        self._version = event["object"]["metadata"]["resourceVersion"]
        with self._changed:
            self.heard[self._version] = datetime.now(UTC)
            self.history.setdefault(key, []).append(event["object"])
            if event["type"] == "DELETED":
                self.gone.add(key)
            self._changed.notify_all()


def _key(item: Json) -> str:
    meta = item["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}/{meta['uid']}"


def _in_short(one: Json) -> str:
    """An object in a line: uid, node, conditions that say more than True, annotations."""
    meta, spec = one["metadata"], one.get("spec", {})
    conditions = [
        " ".join(
            str(said[name]) for name in ("type", "status", "reason", "message", "lastTransitionTime") if said.get(name)
        )
        for said in one.get("status", {}).get("conditions", ())
        if said["status"] != "True" or said.get("message")
    ]
    words = [
        f"{meta['name']} {meta.get('uid', '')[:8]} since {meta.get('creationTimestamp', '')}",
        str(one.get("status", {}).get("phase", "")),
        f"on {spec['nodeName']}" if spec.get("nodeName") else "",
        *conditions,
        *(f"{key}={value[:80]}" for key, value in meta.get("annotations", {}).items()),
    ]
    return "; ".join(word for word in words if word)
