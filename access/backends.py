"""Django's account backend behind the limits of `access.attempts`, named in `AUTHENTICATION_BACKENDS`.

Invariants: no password is checked beyond the limits; the name that is counted is the one that is looked up; a process
hashes at most CHECKS_MOST password at once, so that guessing does not take its processors, while at most WAITING_MOST
wait, each TURN_SECONDS at most. To Django a refused attempt is a wrong password; `refusal_of(request)` says how long to
wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from typing_extensions import override

from access.attempts import Attempt, attempt_begin, attempt_failed, attempt_of, attempt_succeeded, attempt_wait
from storage.clock import database_now

CHECKS_MOST: Final = 1
WAITING_MOST: Final = 8
TURN_SECONDS: Final = 5.0
BUSY: Final = timedelta(seconds=5)
_turns = threading.BoundedSemaphore(CHECKS_MOST)
_line = threading.BoundedSemaphore(CHECKS_MOST + WAITING_MOST)


class AttemptRefused(PermissionDenied):
    """The password was not checked; Django asks no other backend. `wait`: when to try again."""

    def __init__(self, wait: timedelta, *, busy: bool = False) -> None:
        super().__init__("this sign-in has to wait")
        self.wait = wait
        self.busy = busy

    @property
    def wait_seconds(self) -> int:
        """At least one."""
        return max(1, round(self.wait.total_seconds()))


def refusal_of(request: HttpRequest) -> AttemptRefused | None:
    """Why the password of this request was not checked; None where it was."""
    found: AttemptRefused | None = getattr(request, "gpuplane_attempt_refused", None)
    return found


class CountedBackend(ModelBackend):
    """Names and passwords of accounts, within the limits."""

    @override
    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """The account; None for a wrong pair. Raises AttemptRefused (a PermissionDenied)."""
        typed = kwargs.get(User.USERNAME_FIELD) if username is None else username
        if typed is None or password is None:
            return None
        attempt = attempt_of(request, typed)
        try:
            with counted(attempt) as outcome:
                user = None
                if opens_by_password(attempt.name):
                    user = super().authenticate(request, username=attempt.name, password=password)
                outcome.right = user is not None
        except AttemptRefused as refused:
            if request is not None:
                request.gpuplane_attempt_refused = refused  # type: ignore[attr-defined]  # for `refusal_of`
            raise
        return user

    @override
    async def aauthenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """The same; Django's own would bypass the limits."""
        return await sync_to_async(self.authenticate)(request, username=username, password=password, **kwargs)


def opens_by_password(name: str) -> bool:
    """Whether the password of the account opens a session: GPUPLANE_LOCAL_ACCOUNTS may leave one such account."""
    return settings.GPUPLANE_LOCAL_ACCOUNTS == "all" or name == settings.GPUPLANE_BREAK_GLASS_ACCOUNT


class SignInOutcome:
    """Set `right` if the password is right."""

    right = False


@contextlib.contextmanager
def counted(attempt: Attempt) -> Iterator[SignInOutcome]:
    """Count the attempt before the block checks its password, and note the outcome after it. Raises AttemptRefused."""
    wait = attempt_wait(attempt, now=database_now())
    if wait is not None:
        raise AttemptRefused(wait)
    if not _line.acquire(blocking=False):
        raise AttemptRefused(BUSY, busy=True)
    try:
        with _turn():
            wait = attempt_begin(attempt, now=database_now())
            if wait is not None:
                raise AttemptRefused(wait)
            outcome = SignInOutcome()
            yield outcome
    finally:
        _line.release()
    if outcome.right:
        attempt_succeeded(attempt, now=database_now())
    else:
        attempt_failed(attempt, now=database_now())


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    if not _turns.acquire(timeout=TURN_SECONDS):
        raise AttemptRefused(BUSY, busy=True)
    try:
        yield
    finally:
        _turns.release()
