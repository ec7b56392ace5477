"""Reads a token's claims without verifying them, to refuse what cannot be a ServiceAccount's token.

Used by `agent_tokens` and by REST. Nothing is accepted here: a token with plausible claims is sent to the API server,
which alone can check the signature. Shape and claims of ServiceAccount tokens:
https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

import msgspec

LONGEST: Final = 8_192
"""Characters of any token; a ServiceAccount's has some 1,200."""
LEEWAY_SECONDS: Final = 300.0
"""How much this clock and the API server's may differ."""

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class _Header(msgspec.Struct):
    alg: _Text


class _Claims(msgspec.Struct):
    iss: _Text
    sub: _Text
    exp: float
    aud: str | list[str] = msgspec.field(default_factory=list)


_HEADER: Final = msgspec.json.Decoder(_Header)
_CLAIMS: Final = msgspec.json.Decoder(_Claims)
_UNREADABLE: Final = (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def why_never(token: str, *, account: str, audience: str, now: float, any_account: bool = False) -> str:
    """Why no API server would accept it as a token of this ServiceAccount and audience; empty where one may.

    `any_account`: `account` is the beginning of its name. `now`: seconds since 1970. The issuer may be any, since an
    API server may have several.
    """
    parts = token.split(".")
    if len(parts) != 3 or not all(parts) or len(token) > LONGEST or not token.isascii():
        return "it is no JWT"
    try:
        header, claims = _HEADER.decode(_decoded(parts[0])), _CLAIMS.decode(_decoded(parts[1]))
        _decoded(parts[2])
    except _UNREADABLE:
        return "it is no JWT"
    if header.alg.lower() == "none":
        return "it is not signed"
    if not (claims.sub.startswith(account) if any_account else claims.sub == account):
        return "it is another account's"
    if audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
        return "it is for another audience"
    if not claims.exp > now - LEEWAY_SECONDS:
        return "it has expired"
    return ""


def ends_at(token: str) -> float:
    """Seconds since 1970 at which a token ends that was good, and so can be read."""
    return _CLAIMS.decode(_decoded(token.split(".")[1])).exp


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
