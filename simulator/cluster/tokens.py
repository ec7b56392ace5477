"""Tokens of the cluster's ServiceAccounts: those of agents, bound to a node, and their review.

A token is a JWT of HMAC with the cluster's own secret, which never leaves this process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

import msgspec

from simulator.cluster.kinds import Object

ACCOUNT: Final = "system:serviceaccount:gpuplane-system:gpuplane-agent"
ISSUER: Final = "https://kubernetes.default.svc"
AUDIENCE: Final = "gpuplane"
LIFE_SECONDS: Final = 10 * 365 * 86_400
_NODE: Final = "authentication.kubernetes.io/node-name"
_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'


class _Claims(msgspec.Struct):
    iss: str
    sub: str
    aud: list[str]
    exp: float
    node: str


class Tokens:
    """Signs and reviews."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of_agent(self, node: str, *, now: float) -> str:
        """A token of the agent on that node. `now`: seconds since 1970."""
        claims = msgspec.json.encode(_Claims(ISSUER, ACCOUNT, [AUDIENCE], now + LIFE_SECONDS, node))
        text = f"{_encoded(_HEADER)}.{_encoded(claims)}"
        return f"{text}.{_encoded(self._signature(text))}"

    def review(self, token: str, audiences: list[str]) -> Object:
        """The status of a TokenReview."""
        text, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), _encoded(self._signature(text)).encode()):
            return {"authenticated": False, "error": "the token is not of this cluster"}
        claims = msgspec.json.decode(_decoded(text.partition(".")[2]), type=_Claims)
        return {
            "authenticated": True,
            "user": {"username": claims.sub, "extra": {_NODE: [claims.node]}},
            "audiences": [one for one in audiences if one in claims.aud],
        }

    def _signature(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
