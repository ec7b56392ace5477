"""The caller, as a value that services take; made once a request by `access.selectors.actor_of`.

`namespaces` None means all (admins, and scrapers of metrics). People and machine accounts of scope `rest` see the
namespaces of their teams, where operators may write. An actor of any other scope is a viewer, and may do what its scope
names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from access.choices import Role, TokenScope
from access.errors import NotAllowed


@dataclass(frozen=True, slots=True)
class Actor:
    """A signed-in caller. `name` goes into audit events."""

    name: str
    role: Role
    namespaces: frozenset[str] | None = frozenset()
    service: bool = False
    node: str = ""
    """The node whose agent it is; empty for everybody else."""
    scope: TokenScope = TokenScope.REST
    token: str = field(default="", compare=False, repr=False)
    """Digest of the token of the request; empty for a session, and for an agent's ServiceAccount token."""

    def sees(self, namespace: str) -> bool:
        """Whether the actor may read objects of the namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def require_write(self, namespace: str) -> None:
        """Raise NotAllowed unless the actor may write objects of the namespace."""
        if self.role == Role.VIEWER:
            raise NotAllowed("viewers cannot change anything")
        if not self.sees(namespace):
            raise NotAllowed(f"none of your teams owns the namespace {namespace}")

    def require_operator(self) -> None:
        """Raise NotAllowed unless the actor is an operator or an admin, of whichever teams."""
        if self.role == Role.VIEWER or self.scope != TokenScope.REST:
            raise NotAllowed("only operators may do this")

    def require_scope(self, scope: TokenScope) -> None:
        """Raise NotAllowed for another scope."""
        if self.scope != scope:
            raise NotAllowed(self.refusal(scope))

    def refusal(self, needed: TokenScope, *, node: str = "") -> str:
        """The message of a 403 that names the scope needed."""
        needed_node = f" of node {node}" if node else ""
        own_node = f" of node {self.node}" if self.node else ""
        given = f"{self.scope.value}{own_node}"
        return f"this needs a token of scope {needed.value}{needed_node}; the scope of this one is {given}"

    def require_node(self, node: str) -> None:
        """Raise NotAllowed for the agent of another node."""
        if self.node and self.node != node:
            raise NotAllowed(f"this token speaks for node {self.node} alone")

    def require_admin(self) -> None:
        """Raise NotAllowed unless the actor is an admin."""
        if self.role != Role.ADMIN or self.scope != TokenScope.REST:
            raise NotAllowed("only admins may do this")


SYSTEM = Actor(name="system", role=Role.ADMIN, namespaces=None, service=True)
"""gpuplane itself: collectors, watches, management commands."""
