"""Announces to every process that an account, its tokens or its teams changed, so that caches of it are dropped.

Services call `announce_change` inside their transaction; each web process listens with `subscription`
(`gpuplane.start.subscriptions`). The message on the Redis channel `gpuplane:access` is `{"account": name}`, empty for
all accounts. Invariants: nothing is sent before the commit; the process that made the change needs no Redis; a process
that may have missed messages drops all its caches. While Redis is away caches are stale for `tokens.FRESH_SECONDS` at
most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import orjson
import structlog
from django.conf import settings
from django.db import transaction

from access import tokens
from access.sockets import SOCKETS
from storage.redis_client import REDIS_ERRORS, Purpose, client
from storage.redis_listener import Subscription

CHANNEL: Final = "gpuplane:access"

log = structlog.get_logger(__name__)


def announce_change(account: str = "") -> None:
    """After the commit, drop the caches of this account, or of all (""), in every process."""
    transaction.on_commit(partial(_publish, account))


def apply_change(account: str) -> None:
    """Drop this process's caches of the account and recheck its open sockets. From any thread."""
    tokens.forget(account)
    SOCKETS.changed(account)


def _publish(account: str) -> None:
    apply_change(account)
    try:
        with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection:
            connection.publish(CHANNEL, orjson.dumps({"account": account}))
    except REDIS_ERRORS as error:
        log.warning("access.change_unsent", account=account, why=str(error), known_seconds=tokens.FRESH_SECONDS)


def subscription(on_change: Callable[[str], None] = apply_change) -> Subscription:
    """Calls `on_change` with the account that another process announces, "" for all."""
    return Subscription(
        channel=CHANNEL,
        on_message=lambda data: on_change(_account_in(data)),
        on_subscribed=lambda: on_change(""),  # messages may have been missed
        on_lost=lambda why: log.warning("access.redis_down", why=why),
    )


def _account_in(data: bytes) -> str:
    """The account of a message; "", all accounts, for one that cannot be read."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    account = found.get("account", "") if isinstance(found, dict) else ""
    return account if isinstance(account, str) else ""
