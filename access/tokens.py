"""API tokens: issued once, stored hashed, checked on every request with a cache in memory.

Called by REST authentication and by the cluster's listeners on their hot path. Invariants: a check that was answered in
the last `FRESH_SECONDS` costs one hash and no query; a token that has ended is refused from that moment on, one that is
revoked as soon as the process hears of it (`access.changes`), at the latest when those seconds are over; when a token
was used is noted in memory, and written in the background (`gpuplane.start.access`).
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from knox.crypto import hash_token
from knox.models import AuthToken

from access.actors import Actor
from access.choices import Role, TokenScope
from access.models import TokenUse
from access.selectors import actor_of
from storage.transactions import atomic_retry

FRESH_SECONDS: Final = 20.0
MOST_KNOWN: Final = 16_384
"""Entries of each cache; each agent has a token of its own."""
SHAPE: Final = re.compile(r"[0-9a-f]{64}")
"""Of knox's tokens, 256 random bits; any other text is refused without a query."""
WRITE_SECONDS: Final = 60.0
"""Between two writes of uses; a process that is killed loses those of its last minute."""
AT_ONCE: Final = 500
"""Digests in one query."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A valid token's account, and for how long this may be cached."""

    user: User
    actor: Actor
    fresh_seconds: float = FRESH_SECONDS


class _Answers:
    """Cached answers by digest; the oldest are dropped first. Safe between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._answers: dict[bytes, tuple[float, Verified | None]] = {}
        self.revision = 0
        """Grows whenever `drop` is called."""

    def get(self, digest: bytes, *, now: float) -> tuple[bool, Verified | None]:
        """(whether it is cached, the answer)."""
        entry = self._answers.get(digest)
        if entry is None or entry[0] <= now:
            return False, None
        return True, entry[1]

    def put(self, digest: bytes, answer: Verified | None, *, until: float, revision: int) -> None:
        """Cache the answer, unless `drop` was called since `revision`."""
        with self._lock:
            if revision != self.revision:
                return
            self._answers.pop(digest, None)
            while len(self._answers) >= self._size:
                del self._answers[next(iter(self._answers))]
            self._answers[digest] = (until, answer)

    def drop(self, account: str) -> None:
        """Drop the answers about one account, "" for all."""
        with self._lock:
            self.revision += 1
            if not account:
                self._answers.clear()
                return
            self._answers = {
                digest: entry
                for digest, entry in self._answers.items()
                if entry[1] is None or entry[1].actor.name != account
            }


class _Uses:
    """Tokens used since the last `take`: digest → when, by the clock of `verify_user`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: dict[str, float] = {}

    def note(self, digest: str, now: float) -> None:
        if len(self._seen) < self._size or digest in self._seen:
            self._seen[digest] = now

    def take(self) -> dict[str, float]:
        seen, self._seen = self._seen, {}
        return dict(seen)


# two caches, so that guesses cannot push good tokens out
_good = _Answers(MOST_KNOWN)
_bad = _Answers(MOST_KNOWN)
_elsewhere = _Answers(MOST_KNOWN)
"""Tokens of other issuers, which open REST alone."""
_uses = _Uses(MOST_KNOWN)


def issue(user: User, *, now: datetime | None = None, ends_at: datetime | None = None) -> str:
    """Issue a token of the user; it cannot be read again. `now`: when it was created."""
    created, token = AuthToken.objects.create(user=user, expiry=None)
    dates = {"expiry": ends_at} | ({} if now is None else {"created": now})
    AuthToken.objects.filter(pk=created.pk).update(**dates)
    return str(token)


def revoke_all(user: User) -> int:
    """Revoke every token of the user; return their number. The caller announces the change to other processes."""
    _, by_table = AuthToken.objects.filter(user=user).delete()
    forget(user.get_username())
    return int(by_table.get(AuthToken._meta.label, 0))  # noqa: SLF001 - Django's public model API


def verify(token: str) -> Actor | None:
    """The token's actor, None for an invalid one. At most one query in FRESH_SECONDS a token."""
    verified = verify_user(token)
    return None if verified is None else verified.actor


def verify_cached(token: str, *, clock: Callable[[], float] = time.monotonic) -> Actor | None:
    """Like `verify`, from the cache alone: None also for a token that is not cached."""
    now = clock()
    _, verified = _good.get(_digest(token), now=now)
    if verified is None:
        return None
    _uses.note(verified.actor.token, now)
    return verified.actor


def verify_user(token: str, *, clock: Callable[[], float] = time.monotonic) -> Verified | None:
    """Like `verify`, with the account itself."""
    if not SHAPE.fullmatch(token):
        return None
    digest = _digest(token)
    now = clock()
    for answers in (_good, _bad):
        found, verified = answers.get(digest, now=now)
        if found:
            return _noted(verified, now)
    revisions = _good.revision, _bad.revision
    verified = _look_up(token)
    if verified is None:
        _bad.put(digest, None, until=now + FRESH_SECONDS, revision=revisions[1])
    else:
        _good.put(digest, verified, until=now + verified.fresh_seconds, revision=revisions[0])
    return _noted(verified, now)


def verify_elsewhere(
    token: str, look_up: Callable[[], Verified | None], *, clock: Callable[[], float] = time.monotonic
) -> Verified | None:
    """Like `verify_user`, for a token that somebody else issued: `look_up` says whose. Only good answers are cached."""
    digest, now = _digest(token), clock()
    found, verified = _elsewhere.get(digest, now=now)
    if found:
        return verified
    revision = _elsewhere.revision
    verified = look_up()
    if verified is not None:
        _elsewhere.put(digest, verified, until=clock() + verified.fresh_seconds, revision=revision)
    return verified


def forget(account: str = "") -> None:
    """Drop this process's cached answers about one account, or about all, and those about tokens that open nothing.

    Of these nobody knows the account: the change may have put off the end of one, or opened its account.
    """
    _good.drop(account)
    _elsewhere.drop(account)
    _bad.drop("")


def used(*, clock: Callable[[], float] = time.monotonic) -> dict[str, float]:
    """Digest → how many seconds ago, of tokens used since the last call."""
    now = clock()
    return {digest: max(0.0, now - at) for digest, at in _uses.take().items()}


def valid_tokens(digests: Iterable[str], *, now: datetime) -> dict[str, Actor]:
    """Those of these tokens (digests) that are valid, each with its actor, whose namespaces are left out."""
    pending, found = list(digests), {}
    for start in range(0, len(pending), AT_ONCE):
        rows = _open(now).filter(pk__in=pending[start : start + AT_ONCE], user__is_active=True)
        for digest, name, node, scope in rows.values_list(
            "pk", "user__username", "user__profile__node", "user__profile__scope"
        ):
            opens = TokenScope.AGENT if node else TokenScope(scope or TokenScope.REST)
            found[digest] = Actor(name=name, role=Role.VIEWER, node=node or "", scope=opens, token=digest)
    return found


def uses_flush(*, now: datetime) -> int:
    """Write the uses that this process noted; return the number of tokens."""
    ago = used()
    return uses_write(ago=ago, now=now) if ago else 0


@atomic_retry
def uses_write(*, ago: Mapping[str, float], now: datetime) -> int:
    """Write for each token (digest) that it was used so many seconds ago; tokens that are gone are skipped."""
    digests = list(ago)
    for start in range(0, len(digests), AT_ONCE):
        found = AuthToken.objects.filter(pk__in=digests[start : start + AT_ONCE]).values_list("pk", flat=True)
        rows = [TokenUse(token_id=pk, last_used_at=now - timedelta(seconds=ago[pk])) for pk in found]
        TokenUse.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["token"], update_fields=["last_used_at"]
        )
    return len(digests)


def _noted(verified: Verified | None, now: float) -> Verified | None:
    if verified is not None:
        _uses.note(verified.actor.token, now)
    return verified


def _open(now: datetime | Now) -> QuerySet[AuthToken]:
    rows: QuerySet[AuthToken] = AuthToken.objects.filter(Q(expiry__isnull=True) | Q(expiry__gt=now))
    return rows


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _look_up(token: str) -> Verified | None:
    # by the digest, the primary key: no timing depends on the token's characters; the end by the database's clock
    found = _open(Now()).filter(digest=hash_token(token)).annotate(looked_at=Now()).select_related("user__profile")
    row = found.first()
    if row is None or not row.user.is_active:
        return None
    fresh_seconds = FRESH_SECONDS
    if row.expiry is not None:
        fresh_seconds = min(fresh_seconds, (row.expiry - row.looked_at).total_seconds())
    return Verified(user=row.user, actor=replace(actor_of(row.user), token=row.pk), fresh_seconds=fresh_seconds)
