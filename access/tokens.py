"""API tokens: issued once, stored hashed, checked on every request.

Called by REST authentication, by the cluster's door on its hot path, and by whoever hands out
tokens. Kept true: the token itself is never stored; a check that was answered in the last
`FRESH_SECONDS` costs one hash and one lookup, no query; a token that has ended is refused from that moment on; one that
is revoked, at once in every process that hears of it (`access.changes`), and everywhere once those seconds are over.
That a token was used is noted in memory and written by `access.uses`.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.utils import timezone
from knox.crypto import hash_token
from knox.models import AuthToken

from access.actors import Actor
from access.choices import Role, TokenScope
from access.selectors import actor_of

FRESH_SECONDS: Final = 20.0
MOST_KNOWN: Final = 16_384
"""Answers kept, good and bad ones apart: each agent has a token of its own."""
SHAPE: Final = re.compile(r"[0-9a-f]{64}")
"""What knox makes: 256 random bits. Anything else is nobody's, which costs no query."""
AT_ONCE: Final = 500
"""Digests in one query."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Whose token it is, and when it ends."""

    user: User
    actor: Actor
    ends_at: datetime | None = None


class _Answers:
    """Recent answers by digest, the oldest dropped first. Safe between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._answers: dict[bytes, tuple[float, Verified | None]] = {}
        self._revision = 0

    @property
    def revision(self) -> int:
        """Grows whenever answers are dropped."""
        return self._revision

    def get(self, digest: bytes, *, now: float) -> tuple[bool, Verified | None]:
        """(whether known, the answer)."""
        entry = self._answers.get(digest)
        if entry is None or entry[0] <= now:
            return False, None
        return True, entry[1]

    def put(self, digest: bytes, answer: Verified | None, *, until: float, revision: int) -> None:
        """Keep the answer to a question that was begun at this revision; not if answers were dropped since."""
        with self._lock:
            if revision != self._revision:
                return
            self._answers.pop(digest, None)
            while len(self._answers) >= self._size:
                del self._answers[next(iter(self._answers))]
            self._answers[digest] = (until, answer)

    def drop(self, account: str) -> None:
        """Forget the answers about one account; about all where none is named."""
        with self._lock:
            self._revision += 1
            if not account:
                self._answers.clear()
                return
            of_it = [
                digest
                for digest, (_, answer) in self._answers.items()
                if answer is not None and answer.actor.name == account
            ]
            for digest in of_it:
                del self._answers[digest]


class _Uses:
    """Which tokens were used since the last time that was asked: digest → by the clock of `verify_user`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: dict[str, float] = {}

    def note(self, digest: str, now: float) -> None:
        if len(self._seen) < self._size or digest in self._seen:
            self._seen[digest] = now

    def take(self) -> dict[str, float]:
        seen, self._seen = self._seen, {}
        return dict(seen)


_good = _Answers(MOST_KNOWN)
_bad = _Answers(MOST_KNOWN)
# apart, so that guesses cannot push good tokens out
_uses = _Uses(MOST_KNOWN)


def issue(user: User, *, now: datetime | None = None, ends_at: datetime | None = None) -> str:
    """A fresh token of the user, without an end where none is given; shown this once. `now` is kept as its date."""
    created, token = AuthToken.objects.create(user=user, expiry=None)
    dates = {"expiry": ends_at} | ({} if now is None else {"created": now})
    AuthToken.objects.filter(pk=created.pk).update(**dates)
    return str(token)


def revoke_all(user: User) -> int:
    """Revoke every token of the user; how many there were. Other processes are told by whoever calls this."""
    _, by_table = AuthToken.objects.filter(user=user).delete()
    forget(user.get_username())
    return int(by_table.get(AuthToken._meta.label, 0))  # noqa: SLF001 - Django's public model API


def verify(token: str) -> Actor | None:
    """Whose token it is, None when it is nobody's. Queries at most once in FRESH_SECONDS a token."""
    verified = verify_user(token)
    return None if verified is None else verified.actor


def known(token: str, *, clock: Callable[[], float] = time.monotonic) -> Actor | None:
    """Like `verify`, from memory alone: None also when the token was not seen lately. Never queries.

    For async callers: `known(token) or await sync_to_async(verify)(token)`.
    """
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
        _good.put(digest, verified, until=now + _fresh_seconds(verified), revision=revisions[0])
    return _noted(verified, now)


def forget(account: str = "") -> None:
    """Drop the answers kept in this process about one account, or about all: roles, teams or tokens changed."""
    _good.drop(account)
    if not account:
        _bad.drop("")


def used(*, clock: Callable[[], float] = time.monotonic) -> dict[str, float]:
    """Digest → how many seconds ago, of tokens used since this was last asked."""
    now = clock()
    return {digest: max(0.0, now - at) for digest, at in _uses.take().items()}


def living(digests: Iterable[str], *, now: datetime) -> dict[str, Actor]:
    """Of these tokens, by digest, those that open something now, each with its actor: without namespaces, which nobody asks for here."""
    wanted, found = list(digests), {}
    for start in range(0, len(wanted), AT_ONCE):
        rows = _open(now).filter(pk__in=wanted[start : start + AT_ONCE], user__is_active=True)
        for digest, name, node, scope in rows.values_list(
            "pk", "user__username", "user__profile__node", "user__profile__scope"
        ):
            known = TokenScope.AGENT if node else TokenScope(scope or TokenScope.REST)
            found[digest] = Actor(name=name, role=Role.VIEWER, node=node or "", scope=known, token=digest)
    return found


def _noted(verified: Verified | None, now: float) -> Verified | None:
    if verified is not None:
        _uses.note(verified.actor.token, now)
    return verified


def _fresh_seconds(verified: Verified) -> float:
    if verified.ends_at is None:
        return FRESH_SECONDS
    return min(FRESH_SECONDS, (verified.ends_at - timezone.now()).total_seconds())


def _open(now: datetime) -> QuerySet[AuthToken]:
    rows: QuerySet[AuthToken] = AuthToken.objects.filter(Q(expiry__isnull=True) | Q(expiry__gt=now))
    return rows


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _look_up(token: str) -> Verified | None:
    # Found by its digest, which is the primary key: nothing here depends on the token's own characters.
    row = _open(timezone.now()).filter(digest=hash_token(token)).select_related("user__profile").first()
    if row is None or not row.user.is_active:
        return None
    return Verified(user=row.user, actor=replace(actor_of(row.user), token=row.pk), ends_at=row.expiry)
