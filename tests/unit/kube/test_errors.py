from __future__ import annotations

import socket
import ssl
from typing import Any

import msgspec
import pytest
import urllib3.exceptions as lost

from kube.errors import (
    AlreadyExists,
    ConflictInCluster,
    Denied,
    Gone,
    Invalid,
    KubeError,
    NotFoundInCluster,
    OutcomeUnknown,
    PermanentKubeError,
    ServerBusy,
    Status,
    TemporaryKubeError,
    Throttled,
    Unreachable,
    from_answer,
    from_status,
    from_transport,
)


def _answer(
    code: int,
    *,
    reason: str = "",
    write: bool = False,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> KubeError:
    told = (
        msgspec.json.encode({"kind": "Status", "code": code, "reason": reason, "message": "why"})
        if body is None
        else body
    )
    return from_answer(code=code, body=told, headers=headers or {}, request="PUT /x", write=write)


@pytest.mark.parametrize(
    ("code", "reason", "write", "want"),
    [
        pytest.param(400, "BadRequest", True, Invalid, id="a malformed body"),
        pytest.param(401, "Unauthorized", True, Denied, id="no or wrong credentials"),
        pytest.param(403, "Forbidden", False, Denied, id="not allowed"),
        pytest.param(404, "NotFound", True, NotFoundInCluster, id="no such object"),
        pytest.param(405, "MethodNotAllowed", True, Invalid, id="no such verb"),
        pytest.param(409, "AlreadyExists", True, AlreadyExists, id="created already"),
        pytest.param(409, "Conflict", True, ConflictInCluster, id="stale or bound already"),
        pytest.param(410, "Expired", False, Gone, id="compacted"),
        pytest.param(415, "UnsupportedMediaType", True, Invalid, id="a patch of a kind not known"),
        pytest.param(422, "Invalid", True, Invalid, id="against the schema"),
        pytest.param(429, "TooManyRequests", True, Throttled, id="throttled is surely not applied, write or not"),
        pytest.param(408, "Timeout", False, ServerBusy, id="too slow to read the request"),
        pytest.param(500, "InternalError", False, ServerBusy, id="a read that failed inside"),
        pytest.param(
            500, "InternalError", True, OutcomeUnknown, id="etcd may have applied what the server could not confirm"
        ),
        pytest.param(501, "", True, Invalid, id="not implemented stays so"),
        pytest.param(503, "ServiceUnavailable", False, ServerBusy, id="not ready yet"),
        pytest.param(504, "Timeout", True, OutcomeUnknown, id="a write that took too long"),
        pytest.param(302, "", True, Invalid, id="a redirect is followed by nobody"),
    ],
)
def test_each_answer_has_one_type(code: int, reason: str, write: bool, want: type[KubeError]) -> None:
    error = _answer(code, reason=reason, write=write)
    assert type(error) is want
    assert isinstance(error, TemporaryKubeError) != isinstance(error, PermanentKubeError)
    assert (error.code, error.reason, error.request) == (code, reason, "PUT /x")
    assert "why" in str(error)


@pytest.mark.parametrize(
    ("headers", "details", "want"),
    [
        pytest.param({"Retry-After": "7"}, {}, 7.0, id="the header"),
        pytest.param({}, {"retryAfterSeconds": 3}, 3.0, id="the body where there is no header"),
        pytest.param({"Retry-After": "1"}, {"retryAfterSeconds": 3}, 1.0, id="the header before the body"),
        pytest.param(
            {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, None, id="a date, which the API server never sends"
        ),
        pytest.param({}, {}, None, id="nothing told"),
    ],
)
def test_throttled_says_when_to_come_back(headers: dict[str, str], details: dict[str, int], want: float | None) -> None:
    body = msgspec.json.encode({"code": 429, "details": details})
    error = _answer(429, body=body, headers=headers)
    assert isinstance(error, Throttled)
    assert error.retry_after == want
    assert not error.by_disruption_budget


@pytest.mark.parametrize(
    "body", [b"", b"404 page not found\n", b"<html>", b"[1]", b'{"code": "x"}', b'{"details": 3}', b"\xff\xfe"]
)
def test_a_body_that_is_no_status_is_still_an_error(body: bytes) -> None:
    error = _answer(404, body=body)
    assert type(error) is NotFoundInCluster
    assert error.details.kind == ""


@pytest.mark.parametrize("body", [b'{"message": "label a\\u0000b"}', b"label a\0b"], ids=["a Status", "a page"])
def test_no_message_holds_nul(body: bytes) -> None:
    """A webhook's refusal is kept as a reason, and PostgreSQL takes none."""
    assert "label a\ufffdb" in str(_answer(403, body=body))


def test_an_error_event_takes_its_code_from_the_body() -> None:
    assert type(from_status(Status(code=410, reason="Expired"))) is Gone
    assert type(from_status(Status())) is ServerBusy


_POOL: Any = None
"""It is only printed."""


@pytest.mark.parametrize(
    ("error", "want_sent"),
    [
        pytest.param(lost.NewConnectionError(_POOL, "refused"), False, id="refused"),
        pytest.param(lost.NameResolutionError("host", _POOL, socket.gaierror()), False, id="no such host"),
        pytest.param(lost.ConnectTimeoutError(), False, id="connecting took too long"),
        pytest.param(lost.ProxyError("proxy", OSError()), False, id="the proxy is away"),
        pytest.param(lost.SSLError(ssl.SSLCertVerificationError()), False, id="we refused the server's certificate"),
        pytest.param(lost.ClosedPoolError(_POOL, "closed"), False, id="the pool was closed"),
        pytest.param(
            lost.SSLError(ssl.SSLError("alert")), True, id="the server may have refused ours after the request"
        ),
        pytest.param(lost.ReadTimeoutError(_POOL, "/", "slow"), True, id="no answer in time"),
        pytest.param(lost.ProtocolError("aborted"), True, id="connection lost"),
        pytest.param(lost.IncompleteRead(3, 5), True, id="half an answer"),
    ],
)
def test_a_write_is_unknown_only_if_it_may_have_been_sent(error: Exception, want_sent: bool) -> None:
    assert type(from_transport(error, request="POST /x", write=True)) is (OutcomeUnknown if want_sent else Unreachable)
    assert type(from_transport(error, request="GET /x", write=False)) is Unreachable
