"""Limits attempts at passwords: counted in the database, by name and address, before the password is checked.

Called by `access.backends` (sign-ins) and `gpuplane.pages.sign_in`. Counts are rows, so replicas share them and
they survive restarts.

Invariants: an attempt is counted by one statement before its password is checked, so parallel attempts get no more
tries than serial ones; a right password takes it off again. Within WINDOW from the first failure:

- PAIR_MOST failures of one name from one address make that pair wait.
- ADDRESS_MOST failures from one address, of any names, make the address wait.
- NAME_MOST failures of one name from anywhere make the name wait, but not at addresses from which it signed in within
  KNOWN, so that nobody can lock the owner out.

An attempt that has to wait costs one query and writes nothing.

The audit trail gets the first failure of a pair in a window at once, the last one allowed at once, and those between
when the window is over, as one event with their count. Beyond EVENTS_MOST events a window the rest are one event a
minute (`attempts_close`). At most ROWS_MOST rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F, Q
from django.http import HttpRequest

from access import services
from access.choices import SignInScope
from access.models import SignInCount
from access.networks import network_of
from storage.transactions import atomic_retry

WINDOW: Final = timedelta(minutes=5)
PAIR_MOST: Final = 8
ADDRESS_MOST: Final = 40
NAME_MOST: Final = 60
KNOWN: Final = timedelta(days=90)
EVENTS_MOST: Final = 100
ROWS_MOST: Final = 20_000
"""Rows of counts, and as many of known addresses; beyond it the oldest are deleted."""
BATCH: Final = 500

LIMITS: Final = {SignInScope.PAIR: PAIR_MOST, SignInScope.ADDRESS: ADDRESS_MOST, SignInScope.NAME: NAME_MOST}

_COLUMNS = "scope, key, name, address, tries, failures, told, since"
_UPSERT_END = """
ON CONFLICT (scope, key) DO UPDATE SET
    tries = CASE WHEN access_signincount.since <= %s THEN excluded.tries ELSE access_signincount.tries + 1 END,
    failures = CASE WHEN access_signincount.since <= %s THEN 0 ELSE access_signincount.failures END,
    told = CASE WHEN access_signincount.since <= %s THEN 0 ELSE access_signincount.told END,
    since = CASE WHEN access_signincount.since <= %s THEN excluded.since ELSE access_signincount.since END
RETURNING scope, tries"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: the name as Django looks it up, and the client's network (see `network_of`)."""

    name: str
    address: str

    def key(self, scope: SignInScope) -> str:
        """The row's key: a digest, since names may be long."""
        parts = {
            SignInScope.ADDRESS: (self.address,),
            SignInScope.NAME: (self.name,),
            SignInScope.PAIR: (self.name, self.address),
            SignInScope.KNOWN: (self.name, self.address),
            SignInScope.EVENTS: (),
        }[scope]
        return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def rows(self, scopes: Iterable[SignInScope]) -> Q:
        """A condition for the rows of these scopes."""
        found = Q(pk__in=())
        for scope in scopes:
            found |= Q(scope=scope, key=self.key(scope))
        return found


NOBODY: Final = Attempt("", "")


def attempt_of(request: HttpRequest | None, username: str) -> Attempt:
    """The attempt of a request. Its address is the connection's, or what a trusted proxy says that it is.

    The name is stripped and in NFKC, as Django's sign-in form looks it up; databases compare it with case.
    """
    name = str(User.normalize_username(username.strip())).strip()
    return Attempt(name, network_of("" if request is None else str(request.META.get("REMOTE_ADDR", ""))))


def attempt_wait(attempt: Attempt, *, now: datetime) -> timedelta | None:
    """How long an attempt would have to wait; None where it may begin. Writes nothing."""
    return _waiting(attempt, now=now)[0]


def attempt_begin(attempt: Attempt, *, now: datetime) -> timedelta | None:
    """Count the attempt; None, or how long it has to wait, in which case it is not counted."""
    wait, limits = _waiting(attempt, now=now)
    if wait is not None:
        return wait
    counted = _begin(attempt, now=now)
    return WINDOW if any(counted[scope] > most for scope, most in limits.items()) else None


def _waiting(attempt: Attempt, *, now: datetime) -> tuple[timedelta | None, dict[SignInScope, int]]:
    """(how long to wait, the limits that count for the attempt)."""
    rows = {row.scope: row for row in SignInCount.objects.filter(attempt.rows([*LIMITS, SignInScope.KNOWN]))}
    known = rows.get(SignInScope.KNOWN)
    limits = dict(LIMITS)
    if known is not None and known.since > now - KNOWN:
        del limits[SignInScope.NAME]
    full = [row for scope, most in limits.items() if (row := rows.get(scope)) is not None and row.tries >= most]
    waits = [row.since + WINDOW - now for row in full if row.since > now - WINDOW]
    return (max(waits) if waits else None), limits


@atomic_retry
def _begin(attempt: Attempt, *, now: datetime) -> dict[SignInScope, int]:
    """Count the attempt, after recording the failures of a window that is over."""
    pair = _pair(attempt)
    if pair is not None and pair.since <= now - WINDOW:
        _record(pair, now=now)
    return _count(attempt, LIMITS, now=now)


@atomic_retry
def attempt_failed(attempt: Attempt, *, now: datetime) -> None:
    """Note a wrong password; record it where it is the first or the last one allowed."""
    pair = _pair(attempt)
    if pair is None:  # dropped for newer ones since the attempt began
        return
    pair.failures += 1
    pair.save(update_fields=["failures"])
    if pair.recorded == 0 or pair.tries >= PAIR_MOST:
        _record(pair, now=now, waits=pair.tries >= PAIR_MOST)


@atomic_retry
def attempt_succeeded(attempt: Attempt, *, now: datetime) -> None:
    """Take the attempt off the counts, reset the pair's, and remember the address."""
    pair = _pair(attempt)
    if pair is not None:
        _record(pair, now=now)
        SignInCount.objects.filter(pk=pair.pk).update(tries=0)
    others = attempt.rows([SignInScope.ADDRESS, SignInScope.NAME])
    SignInCount.objects.filter(others, tries__gt=0).update(tries=F("tries") - 1)
    SignInCount.objects.update_or_create(
        scope=SignInScope.KNOWN,
        key=attempt.key(SignInScope.KNOWN),
        defaults={"name": services.name_shown(attempt.name), "address": attempt.address, "since": now},
    )


def attempts_close(*, now: datetime) -> int:
    """Record the failures of windows that are over, and delete these; return their number.

    Called once a minute by the beat.
    """
    closed = 0
    while batch := _close_some(now=now):
        closed += batch
    for scopes in (Q(scope=SignInScope.KNOWN), ~Q(scope=SignInScope.KNOWN)):
        kept = SignInCount.objects.filter(scopes).order_by("-since", "-pk")
        if oldest := kept.values_list("since", flat=True)[ROWS_MOST : ROWS_MOST + 1].first():
            SignInCount.objects.filter(scopes, since__lte=oldest).delete()
    return closed


@atomic_retry
def _close_some(*, now: datetime) -> int:
    over = Q(scope=SignInScope.KNOWN, since__lte=now - KNOWN) | (
        ~Q(scope=SignInScope.KNOWN) & Q(since__lte=now - WINDOW)
    )
    rows = list(SignInCount.objects.select_for_update().filter(over).order_by("pk")[:BATCH])
    unrecorded = [row for row in rows if row.scope == SignInScope.PAIR and row.failures > row.recorded]
    rest = [row for row in unrecorded if not _record(row, now=now)]
    if rest:
        services.sign_ins_failed(
            count=sum(row.failures - row.recorded for row in rest),
            names=len({row.name for row in rest}),
            addresses=len({row.address for row in rest}),
            now=now,
        )
    SignInCount.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def _pair(attempt: Attempt) -> SignInCount | None:
    return SignInCount.objects.select_for_update().filter(attempt.rows([SignInScope.PAIR])).first()


def _record(pair: SignInCount, *, now: datetime, waits: bool = False) -> bool:
    """Write one event for the pair's failures that have none; False where this window has had EVENTS_MOST."""
    count = pair.failures - pair.recorded
    if count <= 0:
        return True
    if _count(NOBODY, [SignInScope.EVENTS], now=now)[SignInScope.EVENTS] > EVENTS_MOST:
        return False
    services.sign_in_failed(
        username=pair.name, address=pair.address, count=count, since=pair.since, waits=waits, now=now
    )
    SignInCount.objects.filter(pk=pair.pk).update(recorded=F("recorded") + count)
    return True


def _count(attempt: Attempt, scopes: Iterable[SignInScope], *, now: datetime) -> dict[SignInScope, int]:
    """Add one to each scope's count, in one statement; return the counts of this window."""
    moment, over = (connection.ops.adapt_datetimefield_value(at) for at in (now, now - WINDOW))
    counted = list(scopes)
    parameters: list[Any] = []
    for scope in counted:
        name = services.name_shown(attempt.name) if scope != SignInScope.ADDRESS else ""
        address = attempt.address if scope != SignInScope.NAME else ""
        parameters += [str(scope), attempt.key(scope), name, address, 1, 0, 0, moment]
    rows = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * len(counted))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO access_signincount ({_COLUMNS}) VALUES {rows}{_UPSERT_END}",  # noqa: S608 - constants only
            [*parameters, over, over, over, over],
        )
        return {SignInScope(scope): tries for scope, tries in cursor.fetchall()}
