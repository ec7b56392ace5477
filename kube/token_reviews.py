"""TokenReview: the ServiceAccount of a token. Invariants: a token is valid only for the given audience."""

from __future__ import annotations

from typing import Final

import msgspec

from kube.client import Cluster
from kube.listing import decode

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
NODE: Final = "authentication.kubernetes.io/node-name"
"""Extra field: the node of the pod that the token is bound to (Kubernetes 1.30 and later)."""


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] | None = None


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class Reviewed(msgspec.Struct, frozen=True):
    """`username`: `system:serviceaccount:<namespace>:<name>`; `node`: that of the token's pod, empty without one."""

    username: str
    node: str


def review(cluster: Cluster, *, token: str, audience: str, timeout: float | None = None) -> Reviewed | None:
    """The owner of the token; None for an invalid token or another audience. Raises KubeError."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    answer = cluster.request("POST", _PATH, body=body, timeout=timeout, retry=False)  # the agent connects again
    status = decode(answer, _Review, request=f"POST {_PATH}").status
    if not status.authenticated or audience not in (status.audiences or ()):
        return None
    return Reviewed(status.user.username, next(iter((status.user.extra or {}).get(NODE, ())), ""))
