"""Open WebSockets, closed at once when their token is revoked or their account is shut.

Listeners and consumers register theirs; `access.changes` names accounts that changed; a check every `ROUND_SECONDS`
finds the rest (a token's end, a lost message). Invariants: everything runs in the event loop of the process; tokens are
looked up together, `tokens.AT_ONCE` in a query; a database that is away closes no socket; a check that fails keeps no
other socket open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError, InterfaceError

from access import tokens
from access.choices import TokenScope
from storage.clock import database_now

ROUND_SECONDS: Final = tokens.FRESH_SECONDS
TOGETHER_SECONDS: Final = 0.05
"""Between the first change and the check: changes that come together cost one query."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class OpenSocket:
    """One socket: by an agent's `token` (digest) for `node`, or by a session, whose validity `check` answers."""

    account: str
    end: Callable[[], object]
    """Closes it; called in the loop, once."""
    token: str = ""
    node: str = ""
    check: Callable[[], Awaitable[bool]] | None = None
    ended: bool = field(default=False, init=False)
    why: str = field(default="", init=False)

    def cut(self, why: str = "the token was revoked, or has ended") -> None:
        """Close it, once."""
        if not self.ended:
            self.ended, self.why = True, why
            self.end()


class Sockets:
    """The open sockets of one process."""

    def __init__(self) -> None:
        self._open: set[OpenSocket] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: set[str] = set()
        self._checking: asyncio.Task[None] | None = None

    def opened(self, entry: OpenSocket) -> OpenSocket:
        """Register a socket. Inside the loop."""
        self._loop = asyncio.get_running_loop()
        self._open.add(entry)
        return entry

    def closed(self, entry: OpenSocket) -> None:
        """Remove a socket."""
        self._open.discard(entry)

    def changed(self, account: str) -> None:
        """Check the sockets of an account that changed, "" for all. From any thread."""
        loop = self._loop
        if loop is None or not self._open:
            return
        try:
            loop.call_soon_threadsafe(self._schedule, account)
        except RuntimeError:  # the loop has ended, and every socket with it
            log.debug("access.no_loop", account=account)

    async def check(self, accounts: frozenset[str] | None = None) -> int:
        """Close invalid sockets of these accounts, or (None) of all tokens; return their number."""
        chosen = [one for one in self._open if accounts is None or "" in accounts or one.account in accounts]
        try:
            invalid = await self._invalid_by_token([one for one in chosen if one.token])
        except (DatabaseError, InterfaceError) as error:
            log.warning("access.sockets_unread", error=str(error))
            invalid = []
        for one in invalid:
            _cut(one)
        count = len(invalid)
        if accounts is None:
            return count
        for one in chosen:
            if one.check is not None and not await _is_valid(one.check, one.account):
                _cut(one)
                count += 1
        return count

    async def _invalid_by_token(self, chosen: list[OpenSocket]) -> list[OpenSocket]:
        if not chosen:
            return []
        digests = {one.token for one in chosen}
        valid = await database_sync_to_async(lambda: tokens.valid_tokens(digests, now=database_now()))()

        def is_valid(one: OpenSocket) -> bool:
            actor = valid.get(one.token)
            return actor is not None and actor.scope == TokenScope.AGENT and actor.node == one.node

        return [one for one in chosen if not is_valid(one)]

    def _schedule(self, account: str) -> None:
        self._changed.add(account)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_changed(), name="access-sockets")

    async def _check_changed(self) -> None:
        while self._changed:
            await asyncio.sleep(TOGETHER_SECONDS)
            accounts, self._changed = frozenset(self._changed), set()
            await self.check(accounts)


async def _is_valid(check: Callable[[], Awaitable[bool]], account: str) -> bool:
    """What the check answers; True where it fails, so that a fault closes no socket of somebody who may have it."""
    try:
        return await check()
    except Exception:  # a defect of one check must not keep others open
        log.exception("access.socket_unchecked", account=account)
        return True


def _cut(one: OpenSocket) -> None:
    log.info("access.socket_cut", account=one.account, node=one.node)
    one.cut()


SOCKETS = Sockets()
"""This process's."""
