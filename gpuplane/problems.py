"""Turns errors into HTTP by one table: RFC 9457 problem documents.

Used by the REST exception handler and by pages; `gpuplane.listeners.answers` writes the same documents for the plain
ASGI applications. Invariants: `detail` says what a person can act on, `field` and `rule` which rule was broken; nothing
about the inside of a fault is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import orjson
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import Http404, HttpResponse, UnreadablePostError
from rest_framework.exceptions import APIException, ValidationError

from access import errors
from kube import errors as kube_errors
from storage.transactions import SPACE, is_full, is_transient

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
FULL_RETRY_AFTER_SECONDS = 30
"""An administrator has to make room first."""
NO_SPACE = "the database has no space left, so nothing can be changed until an administrator makes room"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem document, and the headers that go with it."""

    status: int
    detail: str
    field: str = ""
    rule: str = ""
    headers: Mapping[str, str] = {}

    def document(self) -> dict[str, Any]:
        """The JSON body."""
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return body | {name: value for name in ("field", "rule") if (value := getattr(self, name))}


def problem_response(problem: Problem) -> HttpResponse:
    """The problem as a response of Django."""
    body = orjson.dumps(problem.document())
    return HttpResponse(body, status=problem.status, content_type=MEDIA_TYPE, headers=dict(problem.headers))


TABLE: tuple[tuple[type[BaseException], int], ...] = (
    (errors.TooLarge, 413),
    (errors.BadInput, 400),
    (errors.NotAllowed, 403),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.TooCostly, 422),
    (errors.TooManyUnderWay, 429),
    (errors.TookTooLong, 504),
    (errors.Unavailable, 503),
    (kube_errors.TemporaryKubeError, 503),
    (kube_errors.NotConfigured, 503),
    (kube_errors.NotFoundInCluster, 404),
    (kube_errors.AlreadyExists, 409),
    (kube_errors.ConflictInCluster, 409),
    (kube_errors.Gone, 409),
    (kube_errors.Invalid, 400),
    (kube_errors.KubeError, 502),
    (Http404, 404),
    (PermissionDenied, 403),
    (RequestDataTooBig, 413),
    (UnreadablePostError, 400),
    (SuspiciousOperation, 400),
)
"""Error type → status; the first that matches counts."""


def problem_of(error: BaseException) -> Problem | None:
    """The problem document of an error; None for a defect (500)."""
    if isinstance(error, APIException):
        return _of_rest(error)
    for kind, status in TABLE:
        if isinstance(error, kind):
            return Problem(
                status=status,
                detail=_sentence(error, status),
                field=getattr(error, "field", ""),
                rule=getattr(error, "rule", ""),
                headers=_retry_after(error, status),
            )
    if is_full(error):
        SPACE.note(error)
        return Problem(status=507, detail=NO_SPACE, headers={"Retry-After": str(FULL_RETRY_AFTER_SECONDS)})
    if isinstance(error, DatabaseError | InterfaceError) and (
        isinstance(error, OperationalError | InterfaceError) or is_transient(error)
    ):
        return Problem(
            status=503,
            detail="the database is busy or down; try again",
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )
    return None


def _retry_after(error: BaseException, status: int) -> dict[str, str]:
    seconds = getattr(error, "retry_after_seconds", RETRY_AFTER_SECONDS if status == 503 else None)
    return {} if seconds is None else {"Retry-After": str(seconds)}


FAULT = Problem(status=500, detail="a fault in gpuplane; the log has the details")


def _sentence(error: BaseException, status: int) -> str:
    if isinstance(error, Http404):
        return "there is no such object"
    if isinstance(error, RequestDataTooBig | errors.TooLarge) and not str(error):
        return "the body is too large"
    if isinstance(error, kube_errors.TemporaryKubeError):
        return f"the Kubernetes API did not answer as it should: {error}"
    return str(error) or HTTPStatus(status).phrase


def _of_rest(error: APIException) -> Problem:
    if isinstance(error, ValidationError):
        field, detail, rule = _first(error.detail)
        return Problem(
            status=error.status_code, detail=f"{field}: {detail}" if field else detail, field=field, rule=rule
        )
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return Problem(status=error.status_code, detail=str(error.detail), headers=headers)


def _first(detail: Any, path: str = "") -> tuple[str, str, str]:
    """(field, sentence, rule) of the first of REST framework's nested errors."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            inner = "" if key == "non_field_errors" else str(key)
            return _first(value, f"{path}.{inner}".strip(".") if inner else path)
    if isinstance(detail, list):
        for index, value in enumerate(detail):
            if value:
                nested = isinstance(value, Mapping | list)
                return _first(value, f"{path}[{index}]" if nested else path)
    return path, str(detail), str(getattr(detail, "code", "") or "")
