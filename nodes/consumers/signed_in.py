"""Base of the consumers of this package: a stream that lasts as long as its user is signed in.

Invariants: anonymous sockets are closed with 4401, so that the browser sees why; sockets of a user who is deactivated
are closed as soon as this process receives that (`access.changes`), those of one who signs out within CHECK_SENT
messages, about a minute.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

import structlog
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError, InterfaceError

from access.sessions import SessionStore
from access.sockets import SOCKETS, OpenSocket
from storage.task_end import end_tasks

NOT_SIGNED_IN = 4401
OUR_FAILURE = 1011
CHECK_SENT = 60

log = structlog.get_logger(__name__)


class SignedInConsumer(AsyncWebsocketConsumer, ABC):
    """Runs `pump` while the socket is open. No channel layer: a stream works without Redis, and can say so."""

    _task: asyncio.Task[None] | None = None
    _open: OpenSocket | None = None
    _sent = 0

    @abstractmethod
    async def pump(self) -> None:
        """Send messages until cancelled or closed."""

    async def connect(self) -> None:
        """Accept, and close again at once when nobody is signed in."""
        await self.accept()
        user = self.scope.get("user")
        if user is None or not user.is_authenticated or not user.is_active:
            await self.close(NOT_SIGNED_IN)
            return
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._open = SOCKETS.opened(OpenSocket(account=user.get_username(), end=self._end, check=self._still_signed_in))

    async def disconnect(self, code: int) -> None:  # noqa: ARG002 - Channels passes it by position
        """End the pump."""
        if self._open is not None:
            SOCKETS.closed(self._open)
        if self._task is not None:
            await end_tasks(self._task)

    async def sent_one(self) -> None:
        """Count a message that was sent. Raises SignedOut."""
        if self._open is not None and self._open.ended:  # and the cancellation was lost (storage.task_end)
            raise SignedOut
        self._sent += 1
        if self._sent % CHECK_SENT == 0:
            await self._check_signed_in()

    async def _run(self) -> None:
        try:
            await self._check_signed_in()  # the user may have been deactivated before the socket was registered
            await self.pump()
        except SignedOut:
            await self.close(NOT_SIGNED_IN)
        except asyncio.CancelledError:
            if self._open is None or not self._open.ended:
                raise
            await self.close(NOT_SIGNED_IN)
        except Exception:  # a defect ends this socket only, and the page reconnects
            log.exception("stream.failed", path=self.scope.get("path"))
            await self.close(OUR_FAILURE)

    def _end(self) -> None:
        """End the stream of a user who is no longer signed in."""
        if self._task is not None:
            self._task.cancel()

    async def _check_signed_in(self) -> None:
        if not await self._still_signed_in():
            raise SignedOut

    async def _still_signed_in(self) -> bool:
        session: Any = self.scope.get("session")
        if session is None:
            return True
        try:
            kept = SessionStore(session.session_key)
            if not await database_sync_to_async(kept.load)():  # empty where it has ended, or is over
                return False
            user = await get_user(self.scope)
        except (DatabaseError, InterfaceError) as error:
            log.warning("stream.session", error=str(error))
            return True
        return bool(user.is_authenticated and user.is_active)


class SignedOut(Exception):
    """The user is no longer signed in."""
