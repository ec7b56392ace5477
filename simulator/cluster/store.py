"""The objects of the simulated cluster, and the log of their changes.

Written by `server` for gpuplane and by the simulator's own parts; one event loop, no locks. Invariants: a stored object
is never changed in place; every write has a resourceVersion of its own, higher than all before, also after a restart;
a write that changes nothing is none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from simulator.cluster.kinds import (
    BUILT_IN,
    CRDS,
    EVENTS,
    NAMESPACES,
    PODS,
    Key,
    Kind,
    Object,
    Refusal,
    conflict,
    invalid,
    not_found,
    too_old,
)
from simulator.cluster.selectors import Test

T = TypeVar("T")

CHANGES_KEPT: Final = 20_000
EVENTS_KEPT: Final = 2_000
OWN: Final = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
"""Metadata that only the server writes."""
AFTER_RESTART: Final = 10_000
"""How far versions go on after a restart: the last writes before it may be lost."""


class Change(NamedTuple):
    """One write. `before` is None for a new object; `object` of a deletion is the last state."""

    version: int
    kind: Kind
    type: str
    object: Object
    before: Object | None


class Store:
    """All objects. `written` is called with each change of a lasting kind."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        written: Callable[[Change], None] = lambda _change: None,
    ) -> None:
        self.clock = clock
        self._written = written
        self._objects: dict[Kind, dict[Key, Object]] = {kind: {} for kind in BUILT_IN}
        self._log: deque[Change] = deque(maxlen=CHANGES_KEPT)
        self.version = 1
        self._forgotten = 0
        self.news = asyncio.Event()
        """Set by the next write, and replaced then."""

    def load(self, objects: Iterable[tuple[str, Object]], *, version: int) -> None:
        """Take over objects (qualified kind, object) of an earlier run, definitions first."""
        for name, item in objects:
            kind = next((kind for kind in self._objects if kind.qualified == name), None)
            if kind is None:
                continue
            meta = item["metadata"]
            self._objects[kind][kind.key(meta.get("namespace", ""), meta["name"])] = item
            if kind is CRDS:
                self._serve(item)
        self.version = self._forgotten = version + AFTER_RESTART

    def everything(self) -> Iterator[tuple[Kind, Object]]:
        """Every object of a lasting kind, definitions first."""
        for kind in sorted(self._objects, key=lambda kind: kind is not CRDS):
            if kind.lasting:
                yield from ((kind, item) for item in self._objects[kind].values())

    # reads

    def kind_of(self, group: str, version: str, plural: str) -> Kind:
        """The kind of a path. Raises Refusal."""
        for kind in self._objects:
            if (kind.group, kind.version, kind.plural) == (group, version, plural):
                return kind
        raise Refusal(404, "", "404 page not found")

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        return self._objects[kind].get(kind.key(namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object. Raises Refusal."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise not_found(kind, name)
        return found

    def list(self, kind: Kind, namespace: str = "", wanted: Test = lambda _item: True) -> list[Object]:
        """Objects of a namespace, or of all, by name."""
        items = sorted(self._objects[kind].items())
        return [item for (at, _), item in items if namespace in ("", at) and wanted(item)]

    def since(self, version: int) -> Sequence[Change]:
        """Changes after that version, the oldest first. Raises Refusal where some of them are forgotten."""
        if version < self._forgotten:
            raise too_old(version)
        found: list[Change] = []
        for change in reversed(self._log):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    # writes

    def create(self, kind: Kind, namespace: str, body: Object, *, uid: str = "") -> Object:
        """A new object; its namespace is made if missing. Raises Refusal."""
        new = copied(body)
        meta = new.setdefault("metadata", {})
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise Refusal(400, "BadRequest", "the namespace of the object is not that of the request")
            if self.find(NAMESPACES, "", namespace) is None:
                self.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
            meta["name"] = f"{meta['generateName']}{uuid4().hex[:5]}"
        name = meta["name"]
        if self.find(kind, namespace, name) is not None:
            text = f'{kind.qualified} "{name}" already exists'
            raise Refusal(409, "AlreadyExists", text, kind=kind, name=name)
        meta |= {"uid": uid or str(uuid4()), "creationTimestamp": self.moment()}
        if kind.custom:
            meta["generation"] = 1
            new.pop("status", None)
        new |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if kind is PODS:
            new.setdefault("status", {}).setdefault("phase", "Pending")
        if kind is CRDS:
            self._serve(new)
        return self._write(kind, kind.key(namespace, name), new, "ADDED")

    def update(self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        """Replace the object, or its status. Raises Refusal."""
        old = self.get(kind, namespace, name)
        meta = body.get("metadata") or {}
        _check(kind, old, uid=meta.get("uid"), version=meta.get("resourceVersion"))
        kept = {key: old["metadata"][key] for key in OWN if key in old["metadata"]}
        new = {**copied(body), "apiVersion": kind.api_version, "kind": kind.kind}
        new["metadata"] = {key: value for key, value in meta.items() if value not in (None, {})} | kept
        if subresource == "status":
            new = {**old, "metadata": old["metadata"] if kind.custom else new["metadata"], "status": body.get("status")}
        elif kind.status:
            new.pop("status", None)
            new |= {"status": old["status"]} if "status" in old else {}
        if new == old:
            return old
        if kind.custom and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self._write(kind, kind.key(namespace, name), new, "MODIFIED")

    def merge(self, kind: Kind, namespace: str, name: str, change: Object, *, subresource: str = "") -> Object:
        """A merge patch (RFC 7396). Raises Refusal."""
        new = merge_patch(self.get(kind, namespace, name), change)
        return self.update(kind, namespace, name, new, subresource=subresource)

    def set_status(self, kind: Kind, namespace: str, name: str, **status: Any) -> Object:
        """Set fields of the status."""
        return self.merge(kind, namespace, name, {"status": status}, subresource="status")

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", version: str = "", grace: int | None = 0
    ) -> Object:
        """Delete the object; a bound pod with a grace period only gets a deletionTimestamp. Raises Refusal."""
        old = self.get(kind, namespace, name)
        _check(kind, old, uid=uid, version=version)
        runs = kind is PODS and old["spec"].get("nodeName") and old["status"].get("phase") in ("Pending", "Running")
        if runs and grace != 0:
            meta = {**old["metadata"], "deletionTimestamp": self.moment(), "deletionGracePeriodSeconds": grace or 30}
            if "deletionTimestamp" in old["metadata"]:
                return old
            return self._write(kind, kind.key(namespace, name), {**old, "metadata": meta}, "MODIFIED")
        gone = self._write(kind, kind.key(namespace, name), None, "DELETED")
        if kind is CRDS:
            for served in [one for one in self._objects if one.custom and one.qualified == name]:
                del self._objects[served]
        return gone

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        """Bind the pod, and merge the Binding's annotations and labels into it, in one write. Raises Refusal."""
        pod = self.get(PODS, namespace, name)
        told, node = binding.get("metadata") or {}, (binding.get("target") or {}).get("name")
        _check(PODS, pod, uid=told.get("uid"), version=told.get("resourceVersion"))
        if "deletionTimestamp" in pod["metadata"]:
            raise conflict(PODS, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise conflict(PODS, name, f"pod {name} is already assigned to node {pod['spec']['nodeName']!r}")
        meta = dict(pod["metadata"])
        for part in ("annotations", "labels"):
            if told.get(part):
                meta[part] = {**(meta.get(part) or {}), **told[part]}
        others = [one for one in pod["status"].get("conditions") or [] if one["type"] != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.moment()}
        bound = {
            **pod,
            "metadata": meta,
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**pod["status"], "conditions": [*others, scheduled]},
        }
        self._write(PODS, (namespace, name), bound, "MODIFIED")

    def moment(self) -> str:
        """Now, as Kubernetes writes it."""
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _write(self, kind: Kind, key: Key, new: Object | None, type_: str) -> Object:
        before = self._objects[kind].get(key)
        item = new if new is not None else before
        assert item is not None
        self.version += 1
        shown = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        if new is None:
            del self._objects[kind][key]
        else:
            self._objects[kind][key] = shown
        if len(self._log) == CHANGES_KEPT:
            self._forgotten = self._log[0].version
        change = Change(self.version, kind, type_, shown, before)
        self._log.append(change)
        if kind.lasting:
            self._written(change)
        self.news.set()
        self.news = asyncio.Event()
        if kind is EVENTS and len(self._objects[EVENTS]) > EVENTS_KEPT:
            self._write(EVENTS, next(iter(self._objects[EVENTS])), None, "DELETED")
        return shown

    def _serve(self, definition: Object) -> None:
        """Serve the kinds of a definition, and say so in its status."""
        spec = definition["spec"]
        for version in spec["versions"]:
            kind = Kind(
                group=spec["group"],
                version=version["name"],
                plural=spec["names"]["plural"],
                kind=spec["names"]["kind"],
                namespaced=spec["scope"] == "Namespaced",
                status="status" in (version.get("subresources") or {}),
                custom=True,
                lasting=spec["names"]["kind"] not in ("GpuNodeStatus", "Device"),
            )
            self._objects.setdefault(kind, {})
        names = ("NamesAccepted", "Established")
        definition["status"] = {
            "conditions": [{"type": name, "status": "True", "lastTransitionTime": self.moment()} for name in names]
        }


def copied(value: T) -> T:
    """A copy of a JSON value."""
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def merge_patch(old: Any, change: Any) -> Any:
    """RFC 7396; `old` is not changed."""
    if not isinstance(change, dict):
        return change
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merge_patch(new.get(key), value)
    return new


def _check(kind: Kind, old: Object, *, uid: str | None, version: str | None) -> None:
    meta = old["metadata"]
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise conflict(kind, meta["name"], why)
    if version and version != meta["resourceVersion"]:
        raise conflict(kind, meta["name"], "the object has been modified; please apply your changes to the latest")
