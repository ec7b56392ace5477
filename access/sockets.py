"""Sockets that are open, so that those of a revoked token or a closed account end at once.

Doors and consumers register what they hold open; `access.changes` says which account changed; a round every
`ROUND_SECONDS` finds what nobody was told of (a token's end, a message that Redis lost). Kept true: all of it runs in
the event loop of the process and costs an open socket nothing; sockets by tokens are looked up together, one query for
`tokens.AT_ONCE` of them; a database that is away ends no socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from access import tokens
from access.choices import TokenScope
from audit.clock import database_now

ROUND_SECONDS: Final = tokens.FRESH_SECONDS
TOGETHER_SECONDS: Final = 0.05
"""Between the first change heard of and the look: changes that come together cost one query."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Open:
    """One socket. By a token of an agent: `token` (digest) and `node`; by a session: `check` answers whether it still counts."""

    account: str
    end: Callable[[], object]
    """Ends it; called in the loop, once."""
    token: str = ""
    node: str = ""
    check: Callable[[], Awaitable[bool]] | None = None
    ended: bool = field(default=False, init=False)
    why: str = field(default="", init=False)

    def cut(self, why: str = "the token was revoked, or has ended") -> None:
        """End it, unless that was done."""
        if not self.ended:
            self.ended, self.why = True, why
            self.end()


class Sockets:
    """Of one process."""

    def __init__(self) -> None:
        self._open: set[Open] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: set[str] = set()
        self._look: asyncio.Task[None] | None = None

    def opened(self, entry: Open) -> Open:
        """Note it. Inside the loop."""
        self._loop = asyncio.get_running_loop()
        self._open.add(entry)
        return entry

    def closed(self, entry: Open) -> None:
        """It is over."""
        self._open.discard(entry)

    def changed(self, account: str) -> None:
        """Something about this account, or about all (""), is otherwise now. From any thread."""
        loop = self._loop
        if loop is None or not self._open:
            return
        try:
            loop.call_soon_threadsafe(self._look_soon, account)
        except RuntimeError:  # the loop has ended, and every socket with it
            log.debug("access.no_loop", account=account)

    async def look(self, accounts: frozenset[str] | None = None) -> int:
        """End those that count no more, of these accounts or (None) all by tokens; how many."""
        chosen = [one for one in self._open if accounts is None or "" in accounts or one.account in accounts]
        try:
            gone = await self._gone_by_token([one for one in chosen if one.token])
        except DatabaseError as error:
            log.warning("access.sockets_unread", error=str(error))
            gone = []
        if accounts is not None:
            gone += [one for one in chosen if one.check is not None and not await one.check()]
        for one in gone:
            log.info("access.socket_cut", account=one.account, node=one.node)
            one.cut()
        return len(gone)

    async def _gone_by_token(self, chosen: list[Open]) -> list[Open]:
        if not chosen:
            return []
        digests = {one.token for one in chosen}
        there = await database_sync_to_async(lambda: tokens.living(digests, now=database_now()))()

        def counts(one: Open) -> bool:
            actor = there.get(one.token)
            return actor is not None and actor.scope == TokenScope.AGENT and actor.node == one.node

        return [one for one in chosen if not counts(one)]

    def _look_soon(self, account: str) -> None:
        self._changed.add(account)
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(self._look_together(), name="access-sockets")

    async def _look_together(self) -> None:
        while self._changed:
            await asyncio.sleep(TOGETHER_SECONDS)
            accounts, self._changed = frozenset(self._changed), set()
            await self.look(accounts)


SOCKETS = Sockets()
"""This process's."""
