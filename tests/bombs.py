"""Bodies that are small to send and large, or endless, to read.

Shared by the tests of every door and by the attacks.
"""

from __future__ import annotations

import json
from typing import Any, Final

MIB: Final = 1024 * 1024


def lists(size_bytes: int) -> bytes:
    """`[[],[],…]` as a list of nodes: three bytes a list."""
    return b'{"nodes":[' + b"[]," * (size_bytes // 3) + b"[]]}"


def numbers(size_bytes: int) -> bytes:
    """`[1.5,1.5,…]`"""
    return b'{"pods":[' + b"1.5," * (size_bytes // 4) + b"1]}"


def review(inside: bytes, *, uid: str = "705ab4f5") -> bytes:
    """An AdmissionReview of a pod being created, with these bytes as its containers."""
    told: dict[str, Any] = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "research",
        "name": "bomb",
        "userInfo": {"username": "jane"},
        "object": {"metadata": {"name": "bomb"}, "spec": {"containers": "@"}},
    }
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": told}
    return json.dumps(whole).encode().replace(b'"@"', inside)


def many(item: bytes, size_bytes: int) -> bytes:
    """A JSON list of the item, of about so many bytes."""
    return b"[" + (item + b",") * (size_bytes // (len(item) + 1)) + item + b"]"


YAML_BOMBS: Final = {
    "lists": b"nodes: [" + b"[]," * 300_000 + b"]",
    "deep": b"a: " + b"[" * 400_000,
    "deep in blocks": b"".join(b" " * depth + b"a:\n" for depth in range(1_000)),
    "base 60": b"a: " + b"1:" * 250_000 + b"1",
    "base 60 with a fraction": b"a: " + b"1:" * 250_000 + b"1.5",
    "base 60 by its tag": b'a: !!int "' + b"1:" * 250_000 + b'1"',
    "base 60 by its tag, without quotes": b"a: !!int " + b"1:" * 250_000 + b"1",
    "doubling aliases": b"a0: &a0 [x]\n"
    + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),
    "anchors": b"".join(b"a%d: &a%d x\n" % (n, n) for n in range(20_000)),
    "merge keys": b"a: &a {x: 1}\nb: {<<: *a}",
    "keys": b"".join(b"? a%d\n" % n for n in range(100_000)),
    "documents": b"---\na\n" * 100_000,
    "comments without end": b"#" * 900_000,
}
"""YAML of less than 1 MiB that would take minutes or gigabytes."""
