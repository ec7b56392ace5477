"""API tokens: issued once, stored hashed, checked on every request.

Called by REST authentication, by the cluster's door on its hot path, and by whoever hands out
tokens. Kept true: the token itself is never stored; a check that was answered in the last
`FRESH_SECONDS` costs one hash and one lookup, no query; a revoked token is refused everywhere once
those seconds are over, and at once in the process that revoked it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q
from django.utils import timezone
from knox.crypto import hash_token
from knox.models import AuthToken

from access.actors import Actor
from access.selectors import actor_of

FRESH_SECONDS: Final = 20.0
MOST_KNOWN: Final = 4096
LONGEST: Final = 256


@dataclass(frozen=True, slots=True)
class Verified:
    """Whose token it is."""

    user: User
    actor: Actor


class _Answers:
    """Recent answers by digest, the oldest dropped first. Safe between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._answers: dict[bytes, tuple[float, Verified | None]] = {}

    def get(self, digest: bytes, *, now: float) -> tuple[bool, Verified | None]:
        """(whether known, the answer)."""
        entry = self._answers.get(digest)
        if entry is None or entry[0] <= now:
            return False, None
        return True, entry[1]

    def put(self, digest: bytes, answer: Verified | None, *, until: float) -> None:
        with self._lock:
            self._answers.pop(digest, None)
            while len(self._answers) >= self._size:
                del self._answers[next(iter(self._answers))]
            self._answers[digest] = (until, answer)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()


_good = _Answers(MOST_KNOWN)
_bad = _Answers(MOST_KNOWN)
# apart, so that guesses cannot push good tokens out


def issue(user: User, *, now: datetime | None = None) -> str:
    """A fresh token of the user that never expires; shown this once. `now` is kept as its date."""
    created, token = AuthToken.objects.create(user=user, expiry=None)
    if now is not None:
        AuthToken.objects.filter(pk=created.pk).update(created=now)
    return str(token)


def revoke_all(user: User) -> int:
    """Revoke every token of the user; how many there were."""
    count, _ = AuthToken.objects.filter(user=user).delete()
    forget()
    return int(count)


def verify(token: str) -> Actor | None:
    """Whose token it is, None when it is nobody's. Queries at most once in FRESH_SECONDS a token."""
    verified = verify_user(token)
    return None if verified is None else verified.actor


def known(token: str, *, clock: Callable[[], float] = time.monotonic) -> Actor | None:
    """Like `verify`, from memory alone: None also when the token was not seen lately. Never queries.

    For async callers: `known(token) or await sync_to_async(verify)(token)`.
    """
    _, verified = _good.get(_digest(token), now=clock())
    return None if verified is None else verified.actor


def verify_user(token: str, *, clock: Callable[[], float] = time.monotonic) -> Verified | None:
    """Like `verify`, with the account itself."""
    if not token or len(token) > LONGEST:
        return None
    digest = _digest(token)
    now = clock()
    for answers in (_good, _bad):
        found, verified = answers.get(digest, now=now)
        if found:
            return verified
    verified = _look_up(token)
    (_bad if verified is None else _good).put(digest, verified, until=now + FRESH_SECONDS)
    return verified


def forget() -> None:
    """Drop every answer kept in this process: roles, teams or tokens changed here."""
    _good.clear()
    _bad.clear()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _look_up(token: str) -> Verified | None:
    if not token.isascii():
        return None
    # Found by its digest, which is the primary key: nothing here depends on the token's own characters.
    row = (
        AuthToken.objects.filter(Q(expiry__isnull=True) | Q(expiry__gt=timezone.now()), digest=hash_token(token))
        .select_related("user__profile")
        .first()
    )
    if row is None or not row.user.is_active:
        return None
    return Verified(user=row.user, actor=actor_of(row.user))
