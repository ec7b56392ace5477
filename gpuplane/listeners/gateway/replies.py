"""Answers of the gateway itself: errors in OpenAI's shape, which its clients show and act on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson

from gpuplane.listeners import Send
from gpuplane.listeners.answers import RETRY_SOON, Header, Refused, send_response

REQUEST_ID: Final = b"x-request-id"
_TYPES: Final = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "not_allowed"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "too_slow"),
    413: ("invalid_request_error", "body_too_large"),
    429: ("rate_limit_error", "queue_full"),
    502: ("api_error", "runtime_failed"),
    503: ("api_error", "no_slot"),
    504: ("api_error", "runtime_silent"),
}


class GatewayRefusal(Refused):
    """A request that the gateway answers itself. `code` is for programs."""

    def __init__(self, status: int, detail: str, *headers: Header, code: str = "") -> None:
        super().__init__(status, detail, *headers)
        self.code = code


class DatabaseAway(GatewayRefusal):
    """Nothing can be given a place."""

    def __init__(self) -> None:
        super().__init__(503, "the database does not answer; retry later", RETRY_SOON, code="not_ready")


def error_body(status: int, detail: str, code: str = "") -> bytes:
    """An error as OpenAI writes it."""
    kind, usual = _TYPES.get(status, ("api_error", "error"))
    return orjson.dumps({"error": {"message": detail, "type": kind, "param": None, "code": code or usual}})


def error_event(status: int, detail: str) -> bytes:
    """The same within a stream of server-sent events."""
    return b"data: %s\n\n" % error_body(status, detail)


async def send_error(send: Send, refused: Refused, headers: Iterable[Header] = ()) -> None:
    """Answer a request that is refused."""
    body = error_body(refused.status, refused.detail, getattr(refused, "code", ""))
    await send_response(
        send, refused.status, body, content_type=b"application/json", headers=[*refused.headers, *headers]
    )
