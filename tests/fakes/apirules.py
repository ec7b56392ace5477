"""What the stand-in API server lets a write do, one object at a time: names and labels, preconditions, parts of an
endpoint, patches.

Pure: `tests.fakes.apistore` calls these before it writes, and `ApiFault` is the refusal.
"""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.apikinds import ApiFault, Kind, Object, conflict, copied, invalid

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def without_version(item: Object) -> Object:
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "resourceVersion"}}


def check_preconditions(kind: Kind, old: Object, *, uid: str | None, version: str | None, strict: bool = False) -> None:
    """`strict`: a precondition of a Binding or DELETE; else the fields of an object put, where rv is an optimistic
    lock.
    """
    meta = old["metadata"]
    if uid and uid != meta["uid"]:
        raise conflict(
            kind, meta["name"], f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        )
    if version and version != meta["resourceVersion"]:
        told = (
            f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta:"
            f" {meta['resourceVersion']}"
        )
        modified = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(kind, meta["name"], told if strict else modified)


def check_metadata(kind: Kind, item: Object) -> None:
    meta, faults = item["metadata"], []
    if len(meta["name"]) > 253 or not _NAME.fullmatch(meta["name"]):
        faults.append(("metadata.name", f"Invalid value: {meta['name']!r}: a lowercase RFC 1123 subdomain"))
    for part in ("labels", "annotations"):
        for key, value in (meta.get(part) or {}).items():
            if not _QUALIFIED.fullmatch(key):
                faults.append(
                    (f"metadata.{part}", f"Invalid value: {key!r}: name part must consist of alphanumeric characters")
                )
            if not isinstance(value, str):
                raise ApiFault(
                    400,
                    "BadRequest",
                    f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{part} of type string",
                )
            if part == "labels" and not _LABEL_VALUE.fullmatch(value):
                faults.append(
                    ("metadata.labels", f"Invalid value: {value!r}: a valid label must be 63 characters or less")
                )
    if faults:
        raise invalid(kind, meta["name"], faults)


def merge_parts(kind: Kind, old: Object, new: Object, subresource: str) -> Object:
    """What of `new` this endpoint may write; server-owned metadata stays as it was."""
    kept = {
        k: old["metadata"][k]
        for k in ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
        if k in old["metadata"]
    }
    meta = {k: v for k, v in new["metadata"].items() if v not in (None, {})} | kept
    if subresource == "status":
        shown = {**old, "status": new.get("status")}
        shown["metadata"] = meta if not kind.custom else old["metadata"]
        return {k: v for k, v in shown.items() if v is not None}
    body = {**new, "metadata": meta}
    if kind.status:
        body.pop("status", None)
        if "status" in old:
            body["status"] = old["status"]
    return {**body, "apiVersion": kind.api_version, "kind": kind.kind}


def merge_patch(old: Any, change: Any) -> Any:
    """RFC 7396. What does not change is that of `old`, and no copy."""
    if not isinstance(change, dict):
        return copied(change)
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merge_patch(new.get(key), value)
    return new


def json_patch(old: Object, steps: list[Object]) -> Object:
    """RFC 6902: add, replace, remove and test on objects, which is all that we send."""
    new = copied(old)
    for step in steps:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = new
        for part in way:
            if not isinstance(at, dict) or part not in at:
                raise ApiFault(
                    422, "Invalid", f"the server rejected our request due to an error in our request: {step['path']}"
                )
            at = at[part]
        operation = step["op"]
        if operation != "add" and last not in at:
            raise ApiFault(422, "Invalid", f"jsonpatch {operation} operation does not apply: {step['path']}")
        if operation == "test":
            if at[last] != step["value"]:
                raise ApiFault(422, "Invalid", f"jsonpatch test operation does not apply: {step['path']}")
        elif operation == "remove":
            del at[last]
        else:
            at[last] = copied(step["value"])
    return new
