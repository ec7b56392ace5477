"""`Idempotency-Key`: a write that is sent twice is done once (VIEW-5).

Wraps the views of `gpuplane.rest.urls`. Invariants: under one key of one user the same request gets the same response
again; another request is refused (422), and so is the same one while the first runs (409); no response of 5xx, or
fault, and no refusal that says nothing about the request itself (401, 403, 429: nothing was done) is kept, so that the
client may try again.

At most `KEYS_A_USER` keys and `BYTES_A_USER` of responses are kept a user. The oldest finished ones are deleted for new
ones, but none younger than `KEPT_AT_LEAST`; where none may be deleted, a new key is refused (429) before anything is
done. Of a response longer than `LONGEST_ANSWER` no body is kept: a repeat is not done again but refused (409, rule
`answer-not-kept`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import RequestDataTooBig
from django.db import IntegrityError, transaction
from django.db.models import Count, Sum
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.utils.crypto import salted_hmac

from access.authorization import bearer_token
from access.choices import TokenScope
from access.errors import TooManyUnderWay, Unavailable
from access.models import IdempotencyRecord
from gpuplane.problems import Problem, problem_response
from gpuplane.rest.service_accounts import verify_bearer
from storage.clock import database_now
from storage.transactions import atomic_retry

HEADER = "Idempotency-Key"
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
KEY = re.compile(r"[!-~]{1,255}")
ABANDONED = timedelta(minutes=5)
"""An older record without a response is of a process that died; the next request takes it over."""
LONGEST_ANSWER = 128 << 10
"""Bytes of a body."""
KEYS_A_USER = 1_000
BYTES_A_USER = 32 << 20
"""Of bodies, not counting those that are being written."""
KEPT_AT_LEAST = timedelta(minutes=10)
"""A response is kept at least so long, and a day where there is room (`access.tasks`)."""
FULL_RETRY_SECONDS = 60
NOTHING_DONE = frozenset({401, 403, 429})
"""Statuses of refusals by who asks or when: the same request may be done later."""
NOT_KEPT = "gpuplane/answer-not-kept"
"""In place of the media type of a response without a kept body."""

View = Callable[..., HttpResponseBase]


def bounded(view: View) -> View:
    """The view, for bodies up to `DATA_UPLOAD_MAX_MEMORY_SIZE`; REST framework itself reads any."""

    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            request.body  # noqa: B018 - read here, so that what is too large is refused before anything else
        except RequestDataTooBig:
            return problem_response(Problem(413, "the body is too large"))
        except UnreadablePostError:
            return problem_response(Problem(400, "the body broke off"))
        return view(request, *args, **kwargs)

    return run


def idempotent(view: View, *, repeatable: bool = False) -> View:
    """The view, with its response kept for repeats.

    `repeatable`: it changes nothing, so a request whose response is too long to keep may be done again.
    """

    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        key = request.headers.get(HEADER)
        if key is None or request.method not in METHODS:
            return view(request, *args, **kwargs)
        user = _user(request, view)
        if user is None:
            return view(request, *args, **kwargs)  # which refuses it
        if not KEY.fullmatch(key):
            return _refused(400, f"{HEADER} must be 1 to 255 printable ASCII characters without spaces", rule="key")
        record = IdempotencyRecord(
            user=user,
            key=key,
            method=request.method,
            path=request.get_full_path()[:1000],
            digest=_digest(request),
        )
        try:
            earlier = _begin(record=record, now=database_now())
        except _NoRoom:
            return _refused(
                429,
                f"{KEYS_A_USER} keys, or {BYTES_A_USER >> 20} MiB of answers, are kept for you already, of the last "
                f"{KEPT_AT_LEAST.seconds // 60} minutes alone; nothing was done, try again later",
                rule="keys-of-user",
                headers={"Retry-After": str(FULL_RETRY_SECONDS)},
            )
        if earlier is not None:
            return _again(earlier, record)
        return _first(lambda: view(request, *args, **kwargs), record, repeatable=repeatable)

    return run


def _digest(request: HttpRequest) -> str:
    """Of method, whole address (the record keeps its beginning), media type and body.

    The body may hold a password: by our key, so that nobody else can guess at it.
    """
    about = (request.method or "", request.get_full_path(), request.content_type or "")
    content = "\0".join(about).encode() + b"\0" + request.body
    return salted_hmac("gpuplane.rest.idempotency", content, algorithm="sha256").hexdigest()


def _user(request: HttpRequest, view: View) -> User | None:
    """The user by token or session, None also for a token of another scope. The view itself checks again."""
    token = bearer_token(request.headers.get("Authorization", "").encode("latin-1"))
    if token is not None:
        try:
            verified = verify_bearer(token.decode("latin-1"), address=str(request.META.get("REMOTE_ADDR", "")))
        except (TooManyUnderWay, Unavailable):  # the view raises it again, and says so
            return None
        if verified is None:
            return None
        scopes = getattr(getattr(view, "cls", None), "machine_scope", {}).values()
        return verified.user if verified.actor.scope in {TokenScope.REST, *scopes} else None
    user: User | AnonymousUser = request.user
    return user if isinstance(user, User) and user.is_active else None


class _NoRoom(Exception):
    """The user has as many keys, or bytes, as are kept, and too few are old enough to be deleted."""


def _check_room(*, user: User, now: datetime) -> list[int]:
    """Ids of the user's oldest finished records that have to be deleted for a new one. Raises _NoRoom."""
    own = IdempotencyRecord.objects.filter(user=user)
    have = own.aggregate(keys=Count("pk"), size=Sum(Length("body")))
    keys, size = have["keys"] - KEYS_A_USER + 1, (have["size"] or 0) - BYTES_A_USER
    if keys <= 0 and size <= 0:
        return []
    expendable = []
    old = own.filter(status__isnull=False, created_at__lt=now - KEPT_AT_LEAST).order_by("created_at", "pk")
    for pk, length in old.annotate(length=Length("body")).values_list("pk", "length"):
        if keys <= 0 and size <= 0:
            break
        expendable.append(pk)
        keys, size = keys - 1, size - length
    if keys > 0 or size > 0:
        raise _NoRoom
    return expendable


def _begin(*, record: IdempotencyRecord, now: datetime) -> IdempotencyRecord | None:
    """Save the record of a request that starts; return the one of a request before it, if any. Raises _NoRoom.

    A repeat writes nothing, so that many of them keep no other writer waiting.
    """
    earlier = IdempotencyRecord.objects.filter(user=record.user, key=record.key).first()
    if earlier is None:
        _check_room(user=record.user, now=now)
    elif not _same(earlier, record) or earlier.status is not None or earlier.created_at >= now - ABANDONED:
        return earlier
    return _save(record=record, now=now)


@atomic_retry
def _save(*, record: IdempotencyRecord, now: datetime) -> IdempotencyRecord | None:
    """The same, in a transaction that writes: another request may have come in between."""
    record.pk, record.created_at = None, now
    IdempotencyRecord.objects.filter(pk__in=_check_room(user=record.user, now=now), status__isnull=False).delete()
    try:
        with transaction.atomic():
            record.save(force_insert=True)
    except IntegrityError:
        earlier = IdempotencyRecord.objects.filter(user=record.user, key=record.key).first()
        if earlier is None:
            # deleted meanwhile
            record.save(force_insert=True)
            return None
        if not _same(earlier, record) or earlier.status is not None:
            return earlier
        taken_over = IdempotencyRecord.objects.filter(
            pk=earlier.pk, status=None, created_at=earlier.created_at, created_at__lt=now - ABANDONED
        ).update(created_at=now)
        if not taken_over:
            return earlier
        record.pk = earlier.pk
    return None


def _first(call: Callable[[], HttpResponseBase], record: IdempotencyRecord, *, repeatable: bool) -> HttpResponseBase:
    """Run the request and keep its response."""
    try:
        response = call()
        render = getattr(response, "render", None)
        if render is not None:
            response = render()
    except BaseException:
        _forget(record=record)
        raise
    long = isinstance(response, HttpResponse) and len(response.content) > LONGEST_ANSWER
    may_try_again = response.status_code >= 500 or response.status_code in NOTHING_DONE
    if may_try_again or not isinstance(response, HttpResponse) or (long and repeatable):
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


def _again(earlier: IdempotencyRecord, record: IdempotencyRecord) -> HttpResponse:
    if not _same(earlier, record):
        return _refused(422, f"this {HEADER} was used for another request; make a fresh one", rule="key-reused")
    if earlier.status is None:
        return _refused(409, "the first request with this key is still running; ask again later", rule="key-running")
    if earlier.content_type == NOT_KEPT:
        return _refused(
            409,
            f"the first request with this key was done, with status {earlier.status}, and is not done again; its answer"
            f" was longer than {LONGEST_ANSWER >> 10} KiB and is not kept: read {record.path.partition('?')[0]} to see"
            " what is there now",
            rule="answer-not-kept",
            headers={"Idempotency-Replayed": "true"},
        )
    response = HttpResponse(bytes(earlier.body), status=earlier.status)
    if earlier.content_type:
        response["Content-Type"] = earlier.content_type
    else:
        del response["Content-Type"]
    response["Idempotency-Replayed"] = "true"
    return response


def _same(earlier: IdempotencyRecord, record: IdempotencyRecord) -> bool:
    return (earlier.method, earlier.path, earlier.digest) == (record.method, record.path, record.digest)


def _refused(status: int, detail: str, *, rule: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return problem_response(Problem(status, detail, field=HEADER, rule=rule, headers=headers or {}))
