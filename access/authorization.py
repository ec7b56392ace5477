"""The Authorization header, read one way by REST, its idempotency keys, the probes and the listeners."""

from __future__ import annotations


def bearer_token(header: bytes) -> bytes | None:
    """What the value of an Authorization header has after `Bearer`; None for another scheme, and for no header.

    As REST framework reads its own tokens: the scheme in any case, words parted by any white space. Empty without a
    token; more than one word is no token, and no token has a space.
    """
    scheme, *words = header.split() or [b""]
    return b" ".join(words) if scheme.lower() == b"bearer" else None
