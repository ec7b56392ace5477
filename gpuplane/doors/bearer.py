"""Who knocks: the bearer token of a request on the cluster's paths, checked from memory where possible.

Used by `cluster` and `agents`. Only admins and service accounts may use these paths.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from access.actors import Actor
from access.choices import Role
from gpuplane.doors import Scope
from gpuplane.doors.threads import in_thread

CHALLENGE = (b"www-authenticate", b'Bearer realm="gpuplane"')


class Refused(Exception):
    """401 or 403 with its sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes with the status."""
        return [CHALLENGE] if self.status == 401 else []


@dataclass(frozen=True, slots=True)
class Bearer:
    """Checks tokens: `known` from memory (never blocks), `verify` with the database."""

    known: Callable[[str], Actor | None]
    verify: Callable[[str], Actor | None]
    executor: Executor

    async def actor(self, scope: Scope) -> Actor:
        """Who asks. Raises Refused."""
        token = _token(scope)
        if not token:
            raise Refused(401, "this path needs the header Authorization: Bearer <token>")
        found = self.known(token)
        if found is None:
            found = await in_thread(self.executor, self.verify, token)
        if found is None:
            raise Refused(401, "the token is not known, or was revoked")
        if not (found.service or found.role == Role.ADMIN):
            raise Refused(403, "only service accounts and admins may use the cluster's paths")
        return found


def _token(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return str(token.strip().decode("latin-1"))
    return ""
