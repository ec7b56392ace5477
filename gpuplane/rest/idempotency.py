"""`Idempotency-Key`: a write that is sent twice is done once (VIEW-5).

Wraps every view of `gpuplane.rest.urls`, not Django's middleware chain, so that the rest of the
application pays nothing. Kept true: under one key of one user the same request gets the same answer
again; another request is refused (422), and so is a twin that is still running (409); an answer of
5xx, or a fault, is not kept, so that the client may try again.

Bounded: `KEYS_A_USER` keys and `BYTES_A_USER` of answers a user. The oldest finished ones make room, but never one that is younger
than `KEPT_AT_LEAST`, within which clients repeat, and never one that still runs; where nothing may go, a request with a fresh key is
refused (429) before anything is done. Of an answer beyond `LONGEST_ANSWER` only that it was given is kept: a repeat is not done
again, it is told so (409, rule `answer-not-kept`) and where to look.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import orjson
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import RequestDataTooBig
from django.db import IntegrityError, transaction
from django.db.models import Count, Sum
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError

from access.choices import TokenScope
from access.models import IdempotencyRecord
from access.tokens import verify_user
from access.transactions import atomic_retry
from audit.clock import database_now
from gpuplane.problems import MEDIA_TYPE, Problem

HEADER = "Idempotency-Key"
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
KEY = re.compile(r"[!-~]{1,255}")
ABANDONED = timedelta(minutes=5)
"""A record without an answer that is older belongs to a process that died; the next request takes it over."""
LONGEST_ANSWER = 128 << 10
"""Bytes; of a longer answer the body is not kept."""
KEYS_A_USER = 1_000
BYTES_A_USER = 32 << 20
"""Of answers' bodies, give or take those that are being written at this moment."""
KEPT_AT_LEAST = timedelta(minutes=10)
"""So long an answer is given again whatever comes; without need it is a day (`access.tasks`)."""
FULL_RETRY_SECONDS = 60
NOT_KEPT = "gpuplane/answer-not-kept"
"""In place of the media type of an answer of which no body is kept."""

View = Callable[..., HttpResponseBase]


def bounded(view: View) -> View:
    """The view, for bodies up to `DATA_UPLOAD_MAX_MEMORY_SIZE` only. REST framework itself would read any."""

    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            request.body  # noqa: B018 - read here, so that what is too large is refused before anything else
        except RequestDataTooBig:
            return _refused(413, "the body is too large")
        except UnreadablePostError:
            return _refused(400, "the body broke off")
        return view(request, *args, **kwargs)

    return run


def idempotent(view: View, *, repeatable: bool = False) -> View:
    """The view, giving its answer again to a repeat. `repeatable`: it changes nothing, so a request whose answer is too long to keep may be done again."""

    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        key = request.headers.get(HEADER)
        if key is None or request.method not in METHODS:
            return view(request, *args, **kwargs)
        user = _user(request, view)
        if user is None:
            return view(request, *args, **kwargs)  # which refuses it
        if not KEY.fullmatch(key):
            return _refused(
                400, f"{HEADER} must be 1 to 255 printable ASCII characters without spaces", field=HEADER, rule="key"
            )
        record = IdempotencyRecord(
            user=user,
            key=key,
            method=request.method,
            path=request.get_full_path()[:1000],
            digest=hashlib.sha256((request.content_type or "").encode() + b"\0" + request.body).hexdigest(),
        )
        try:
            known = _begin(record=record, now=database_now())
        except _NoRoom:
            return _refused(
                429,
                f"{KEYS_A_USER} keys, or {BYTES_A_USER >> 20} MiB of answers, are kept for you already, of the last "
                f"{KEPT_AT_LEAST.seconds // 60} minutes alone; nothing was done, try again later",
                field=HEADER,
                rule="keys-of-user",
                headers={"Retry-After": str(FULL_RETRY_SECONDS)},
            )
        if known is not None:
            return _again(known, record)
        return _first(lambda: view(request, *args, **kwargs), record, repeatable=repeatable)

    return run


def _user(request: HttpRequest, view: View) -> User | None:
    """Who asks, by token or session; None also for a token that does not open the view. The view itself checks again."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        verified = verify_user(token.strip())
        if verified is None:
            return None
        scopes = getattr(getattr(view, "cls", None), "machine_scope", {}).values()
        return verified.user if verified.actor.scope in {TokenScope.REST, *scopes} else None
    user: User | AnonymousUser = request.user
    return user if isinstance(user, User) and user.is_active else None


class _NoRoom(Exception):
    """The user has as many keys, or bytes of answers, as are kept, and none of them is old enough to go."""


def _check_room(*, user: User, now: datetime) -> list[int]:
    """The oldest finished answers of the user that have to go where a further one would be too many. Raises _NoRoom."""
    own = IdempotencyRecord.objects.filter(user=user)
    have = own.aggregate(keys=Count("pk"), size=Sum(Length("body")))
    keys, size = have["keys"] - KEYS_A_USER + 1, (have["size"] or 0) - BYTES_A_USER
    if keys <= 0 and size <= 0:
        return []
    going = []
    old = own.filter(status__isnull=False, created_at__lt=now - KEPT_AT_LEAST).order_by("created_at", "pk")
    for pk, length in old.annotate(length=Length("body")).values_list("pk", "length"):
        if keys <= 0 and size <= 0:
            break
        going.append(pk)
        keys, size = keys - 1, size - length
    if keys > 0 or size > 0:
        raise _NoRoom
    return going


def _begin(*, record: IdempotencyRecord, now: datetime) -> IdempotencyRecord | None:
    """Note that the request runs; the record that is there already, if any. Raises _NoRoom.

    What is refused or answered again is told without writing, so that a flood of it keeps no other writer waiting.
    """
    known = IdempotencyRecord.objects.filter(user=record.user, key=record.key).first()
    if known is None:
        _check_room(user=record.user, now=now)
    elif not _same(known, record) or known.status is not None or known.created_at >= now - ABANDONED:
        return known
    return _note(record=record, now=now)


@atomic_retry
def _note(*, record: IdempotencyRecord, now: datetime) -> IdempotencyRecord | None:
    """The same, writing. Another request may have come in between."""
    record.pk, record.created_at = None, now
    IdempotencyRecord.objects.filter(pk__in=_check_room(user=record.user, now=now), status__isnull=False).delete()
    try:
        with transaction.atomic():
            record.save(force_insert=True)
    except IntegrityError:
        known = IdempotencyRecord.objects.filter(user=record.user, key=record.key).first()
        if known is None:
            # it was given up in this very moment
            record.save(force_insert=True)
            return None
        if not _same(known, record) or known.status is not None:
            return known
        taken_over = IdempotencyRecord.objects.filter(
            pk=known.pk, status=None, created_at=known.created_at, created_at__lt=now - ABANDONED
        ).update(created_at=now)
        if not taken_over:
            return known
        record.pk = known.pk
    return None


def _first(call: Callable[[], HttpResponseBase], record: IdempotencyRecord, *, repeatable: bool) -> HttpResponseBase:
    """Run the request and keep its answer."""
    try:
        response = call()
        render = getattr(response, "render", None)
        if render is not None:
            response = render()
    except BaseException:
        _forget(record=record)
        raise
    long = isinstance(response, HttpResponse) and len(response.content) > LONGEST_ANSWER
    if response.status_code >= 500 or not isinstance(response, HttpResponse) or (long and repeatable):
        _forget(record=record)
    else:
        _keep(record=record, response=response)
    return response


@atomic_retry
def _keep(*, record: IdempotencyRecord, response: HttpResponse) -> None:
    long = len(response.content) > LONGEST_ANSWER
    IdempotencyRecord.objects.filter(pk=record.pk).update(
        status=response.status_code,
        content_type=NOT_KEPT if long else response.get("Content-Type", "")[:100],
        body=b"" if long else response.content,
    )


@atomic_retry
def _forget(*, record: IdempotencyRecord) -> None:
    IdempotencyRecord.objects.filter(pk=record.pk, status=None).delete()


def _again(known: IdempotencyRecord, record: IdempotencyRecord) -> HttpResponse:
    if not _same(known, record):
        return _refused(
            422, f"this {HEADER} was used for another request; make a fresh one", field=HEADER, rule="key-reused"
        )
    if known.status is None:
        return _refused(
            409, "the first request with this key is still running; ask again later", field=HEADER, rule="key-running"
        )
    if known.content_type == NOT_KEPT:
        return _refused(
            409,
            f"the first request with this key was done, with status {known.status}, and is not done again; its answer was longer "
            f"than {LONGEST_ANSWER >> 10} KiB and is not kept: read {record.path.partition('?')[0]} to see what is there now",
            field=HEADER,
            rule="answer-not-kept",
            headers={"Idempotency-Replayed": "true"},
        )
    response = HttpResponse(bytes(known.body), status=known.status)
    if known.content_type:
        response["Content-Type"] = known.content_type
    else:
        del response["Content-Type"]
    response["Idempotency-Replayed"] = "true"
    return response


def _same(known: IdempotencyRecord, record: IdempotencyRecord) -> bool:
    return (known.method, known.path, known.digest) == (record.method, record.path, record.digest)


def _refused(
    status: int, detail: str, *, field: str = "", rule: str = "", headers: Mapping[str, str] | None = None
) -> HttpResponse:
    problem = Problem(status=status, detail=detail, field=field, rule=rule)
    return HttpResponse(orjson.dumps(problem.document()), status=status, content_type=MEDIA_TYPE, headers=headers)
