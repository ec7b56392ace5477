"""Limits how many sign-ins are worked on at once, so that guessing passwords takes neither the process's threads nor
its interpreter lock.

Put before Django by `gpuplane.application` for POST of the sign-in page, and, one of its own, for sign-in by providers,
whose requests wait for the provider. Invariants: a body is read whole, up to
LONGEST_BYTES, before it takes a slot, so a slow sender holds none; a refusal for too many failures is answered after
REFUSAL_SECONDS, which holds no thread and no slot.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuplane.listeners import App, Receive, Scope, Send
from gpuplane.listeners.answers import Refused, send_problem
from gpuplane.listeners.bodies import BudgetHold, ClientGone, complete_response, read_body
from gpuplane.listeners.body_limits import Budget
from gpuplane.listeners.threads import Busy, Slots

AT_ONCE: Final = 2
WAITING_MOST: Final = 64
WAIT_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 1.0
LONGEST_BYTES: Final = 16 * 1024
BUDGET_BYTES: Final = 4 * 1024 * 1024


class SignInGate:
    """Passes sign-ins on to `application`, AT_ONCE at a time."""

    def __init__(self, application: App, *, name: str = "sign-in") -> None:
        self._application = application
        self._budget = Budget(name, BUDGET_BYTES)
        self._slots = Slots(name, at_once=AT_ONCE, waiting=WAITING_MOST, patience_seconds=WAIT_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one sign-in."""
        try:
            with BudgetHold(self._budget) as held:
                body = await read_body(scope, receive, limit=LONGEST_BYTES, held=held)
                async with self._slots:
                    response = await complete_response(self._application, scope, body, receive)
        except Busy:
            detail = "too many sign-ins at this moment; try again"
            await send_problem(send, 503, detail, [(b"retry-after", b"5")])
            return
        except Refused as refused:
            await send_problem(send, refused.status, refused.detail, refused.headers)
            return
        except ClientGone:
            return
        if response and response[0].get("status") == 429:
            await asyncio.sleep(REFUSAL_SECONDS)
        for message in response:
            await send(message)
