"""The objects behind the stand-in API server of `tests.fakes.apiserver`.

Keeps to what kube-apiserver does where gpuplane depends on it: one counter of resourceVersions, no bump for a
write that changes nothing, preconditions, 409 on a stale write, a Binding that merges its metadata into the
pod, graceful deletion of bound pods, status apart from spec, chunked lists that are one snapshot, and a log
that can be compacted (410). Left out: finalizers, ownerReferences, admission, strategic merge patches.

What one write may do is in `tests.fakes.apirules`, what a selector chooses in `tests.fakes.apiselectors`, schemas in
`tests.fakes.apischema`.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.fakes.apikinds import (
    ACCOUNTS,
    CRDS,
    EVENTS,
    LEASES,
    MUTATING,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    ROLE_BINDINGS,
    ROLES,
    STORAGE_CLASSES,
    VALIDATING,
    VOLUME_CLAIMS,
    ApiFault,
    Key,
    Kind,
    Object,
    conflict,
    copied,
    invalid,
    not_found,
)
from tests.fakes.apirules import (
    check_metadata,
    check_preconditions,
    json_patch,
    merge_parts,
    merge_patch,
    without_version,
)
from tests.fakes.apischema import apply_defaults, schema_faults
from tests.fakes.apiselectors import matcher

MOUNTED = (VOLUME_CLAIMS, STORAGE_CLASSES, RESOURCE_CLAIMS)
"""What pods use that kube-scheduler may have to wait for; spec and status are written in one."""

RIGHTS = (ACCOUNTS, ROLES, ROLE_BINDINGS)
"""Kept, and of no effect."""

_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Change:
    """One line of the log. `before` is None for ADDED."""

    version: int
    kind: Kind
    type: str
    object: Object
    before: Object | None


@dataclass
class Store:
    """All objects. Every method that writes takes the lock; stored objects are never changed in place."""

    objects: dict[Kind, dict[Key, Object]] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    version: int = 1
    compacted: int = 0
    auto_establish: bool = True
    blocked_evictions: set[Key] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    snapshots: dict[str, tuple[int, list[Object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in (NAMESPACES, PODS, NODES, EVENTS, LEASES, CRDS, MUTATING, VALIDATING, *MOUNTED, *RIGHTS):
            self.objects[kind] = {}
        for name in ("default", "kube-system"):
            self.create(NAMESPACES, "", {"metadata": {"name": name}})

    # -- finding

    def kind_of(self, group: str, version: str, plural: str) -> Kind:
        for kind in self.objects:
            if (kind.group, kind.version, kind.plural) == (group, version, plural):
                return kind
        raise ApiFault(404, "", "404 page not found")

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            found = self.objects[kind].get((namespace, name))
            if found is None:
                raise not_found(kind, name)
            return found

    def select(self, kind: Kind, namespace: str, labels: str, fields: str) -> list[Object]:
        wanted = matcher(labels, fields)
        with self.changed:
            items = sorted(self.objects[kind].items())
        return [item for (ns, _), item in items if namespace in ("", ns) and wanted(item)]

    def page(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = "", limit: int = 0, token: str = ""
    ) -> Object:
        """One answer to a list; `token` continues the snapshot that the first page took."""
        with self.changed:
            if token:
                try:
                    mark, at = json.loads(base64.urlsafe_b64decode(token))
                except ValueError as error:
                    raise ApiFault(400, "BadRequest", "continue key is not valid") from error
                if mark not in self.snapshots:
                    raise ApiFault(
                        410,
                        "Expired",
                        "The provided continue parameter is too old to display a consistent list result.",
                    )
                version, items = self.snapshots[mark]
            else:
                mark, at = uuid.uuid4().hex, 0
                version, items = self.version, self.select(kind, namespace, labels, fields)
                self.snapshots[mark] = (version, items)
            part = items[at : at + limit] if limit else items[at:]
            meta: Object = {"resourceVersion": str(version)}
            left = len(items) - at - len(part)
            if left:
                meta["continue"] = base64.urlsafe_b64encode(json.dumps([mark, at + len(part)]).encode()).decode()
                meta["remainingItemCount"] = left
            else:
                self.snapshots.pop(mark, None)
            return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": part}

    # -- writing

    def write(self, kind: Kind, key: Key, new: Object | None, type_: str) -> Object:
        """Put `new` (or take the object away) and log it. The lock is held by the caller."""
        before = self.objects[kind].get(key)
        self.version += 1
        shown = copied(new if new is not None else before)
        assert shown is not None
        shown["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            del self.objects[kind][key]
        else:
            self.objects[kind][key] = shown
        self.log.append(Change(self.version, kind, type_, shown, before))
        self.changed.notify_all()
        return shown

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        new = copied(body)
        meta = new.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise ApiFault(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if kind.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise ApiFault(
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                )
            self.get(NAMESPACES, "", namespace)
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise invalid(kind, "", [("metadata.name", "Required value: name or generateName is required")])
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if kind.status and kind is not NODES and kind is not PODS:
            new.pop("status", None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        if kind.custom:
            meta["generation"] = 1
        new |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if kind is PODS:
            new.setdefault("status", {}).setdefault("phase", "Pending")
        new = self.checked(kind, new)
        with self.changed:
            key = (namespace if kind.namespaced else "", meta["name"])
            if key in self.objects[kind]:
                details = {"name": key[1], "kind": kind.plural, "group": kind.group}
                raise ApiFault(409, "AlreadyExists", f'{kind.qualified} "{key[1]}" already exists', details=details)
            if kind is CRDS:
                self.establish_if_wanted(new)
            return self.write(kind, key, new, "ADDED")

    def update(
        self, kind: Kind, namespace: str, name: str, body: Object, *, subresource: str = "", patch: bool = False
    ) -> Object:
        """A PUT, or the outcome of a PATCH, of the object or of its status."""
        with self.changed:
            key = (namespace, name)
            old = self.objects[kind].get(key)
            new = copied(body)
            meta = new.setdefault("metadata", {})
            if old is None:
                if kind.create_on_update and not patch:
                    if meta.get("uid") or meta.get("resourceVersion"):
                        raise conflict(kind, name, "Precondition failed: the object does not exist")
                    return self.create(kind, namespace, body)
                raise not_found(kind, name)
            if meta.get("name", name) != name:
                raise ApiFault(400, "BadRequest", "the name of the object does not match the name on the URL")
            if not meta.get("resourceVersion") and not kind.unconditional:
                raise invalid(
                    kind, name, [("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update")]
                )
            check_preconditions(kind, old, uid=meta.get("uid"), version=meta.get("resourceVersion"))
            new = merge_parts(kind, old, new, subresource)
            new = self.checked(kind, new)
            if without_version(new) == without_version(old):
                return old
            if kind.custom and new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            return self.write(kind, key, new, "MODIFIED")

    def patch(
        self, kind: Kind, namespace: str, name: str, body: Any, *, content_type: str, subresource: str = ""
    ) -> Object:
        with self.changed:
            old = self.get(kind, namespace, name)
            if content_type == "application/merge-patch+json":
                new = merge_patch(old, body)
            elif content_type == "application/json-patch+json":
                new = json_patch(old, body)
            else:
                raise ApiFault(
                    415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {content_type}"
                )
            return self.update(kind, namespace, name, new, subresource=subresource, patch=True)

    def delete(self, kind: Kind, namespace: str, name: str, options: Object) -> Object:
        with self.changed:
            old = self.get(kind, namespace, name)
            wanted = options.get("preconditions") or {}
            check_preconditions(kind, old, uid=wanted.get("uid"), version=wanted.get("resourceVersion"), strict=True)
            bound = (
                kind is PODS
                and old.get("spec", {}).get("nodeName")
                and old["status"].get("phase") not in ("Succeeded", "Failed")
            )
            if bound and options.get("gracePeriodSeconds") != 0:
                if "deletionTimestamp" in old["metadata"]:
                    return old
                new = copied(old)
                new["metadata"] |= {
                    "deletionTimestamp": timestamp(),
                    "deletionGracePeriodSeconds": options.get("gracePeriodSeconds", 30),
                }
                return self.write(kind, (namespace, name), new, "MODIFIED")
            gone = self.write(kind, (namespace, name), None, "DELETED")
            if kind is CRDS:
                self.withdraw(gone)
            return gone

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        """One write: nodeName, the condition, and the Binding's annotations and labels over the pod's own."""
        with self.changed:
            target = (binding.get("target") or {}).get("name")
            if not target:
                raise ApiFault(422, "Invalid", "target.name: Required value")
            pod = copied(self.get(PODS, namespace, name))
            meta, told = pod["metadata"], binding.get("metadata") or {}
            check_preconditions(PODS, pod, uid=told.get("uid"), version=told.get("resourceVersion"), strict=True)
            if "deletionTimestamp" in meta:
                raise conflict(PODS, name, f"pod {name} is being deleted, cannot be assigned to a host")
            if pod.setdefault("spec", {}).get("nodeName"):
                raise conflict(PODS, name, f"pod {name} is already assigned to node {pod['spec']['nodeName']!r}")
            pod["spec"]["nodeName"] = target
            for part in ("annotations", "labels"):
                if told.get(part):
                    meta[part] = {**(meta.get(part) or {}), **told[part]}
            check_metadata(PODS, pod)
            others = [c for c in pod["status"].get("conditions", []) if c["type"] != "PodScheduled"]
            pod["status"]["conditions"] = [
                *others,
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp()},
            ]
            self.write(PODS, (namespace, name), pod, "MODIFIED")

    def evict(self, namespace: str, name: str, eviction: Object) -> None:
        with self.changed:
            self.get(PODS, namespace, name)
            if (namespace, name) in self.blocked_evictions:
                causes = [
                    {
                        "reason": "DisruptionBudget",
                        "message": "The disruption budget needs 1 healthy pods and has 1 currently",
                    }
                ]
                raise ApiFault(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    details={"causes": causes},
                )
            options = eviction.get("deleteOptions") or {}
            if not options.get("dryRun"):
                self.delete(PODS, namespace, name, options)

    def compact(self) -> None:
        """Forget the log and every list under way: older resourceVersions and continue tokens are 410 from now on."""
        with self.changed:
            self.compacted = self.version
            self.log.clear()
            self.snapshots.clear()

    # -- custom resources

    def establish_if_wanted(self, crd: Object) -> None:
        if self.auto_establish:
            self.serve(crd)

    def establish(self, name: str) -> None:
        with self.changed:
            crd = copied(self.get(CRDS, "", name))
            self.serve(crd)
            self.write(CRDS, ("", name), crd, "MODIFIED")

    def serve(self, crd: Object) -> None:
        spec = crd["spec"]
        for version in spec["versions"]:
            kind = Kind(
                group=spec["group"],
                version=version["name"],
                plural=spec["names"]["plural"],
                kind=spec["names"]["kind"],
                namespaced=spec["scope"] == "Namespaced",
                status="status" in version.get("subresources", {}),
                unconditional=False,
                custom=True,
            )
            self.objects.setdefault(kind, {})
        crd["status"] = {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": timestamp()}
                for kind in ("NamesAccepted", "Established")
            ]
        }

    def withdraw(self, crd: Object) -> None:
        for kind in [
            k
            for k in self.objects
            if k.custom and (k.group, k.plural) == (crd["spec"]["group"], crd["spec"]["names"]["plural"])
        ]:
            del self.objects[kind]

    def schema_of(self, kind: Kind) -> Object:
        crd = self.objects[CRDS][("", kind.qualified)]
        return next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == kind.version)

    def checked(self, kind: Kind, new: Object) -> Object:
        check_metadata(kind, new)
        if kind is LEASES:
            for moment in ("acquireTime", "renewTime"):
                value = (new.get("spec") or {}).get(moment)
                if value is not None and not _MICRO_TIME.fullmatch(value):
                    raise ApiFault(
                        400, "BadRequest", f'Lease in version "v1" cannot be handled as a Lease: parsing time "{value}"'
                    )
        if kind.custom:
            schema = self.schema_of(kind)
            new = apply_defaults(schema, new)
            if faults := schema_faults(schema, new):
                raise invalid(kind, new["metadata"]["name"], faults)
        return new


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
