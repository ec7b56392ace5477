"""Who is asking, as a value that services take. Made once at each edge from the request's user.

`namespaces` None means all (admins, and scrapers of metrics). Viewers and operators see and, for operators, write in
the namespaces of their teams; so does a machine account of scope `rest`. An actor of any other scope has the role
viewer and writes nothing, but what the door of its scope is for.
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
    """The one node that it speaks for, as its agent; empty for everybody else."""
    scope: TokenScope = TokenScope.REST
    token: str = field(default="", compare=False, repr=False)
    """Digest of the token of ours by which it came; empty for a session, and for a ServiceAccount's token."""

    def sees(self, namespace: str) -> bool:
        """Whether objects of the namespace may be shown."""
        return self.namespaces is None or namespace in self.namespaces

    def require_write(self, namespace: str) -> None:
        """Refuse unless objects of the namespace may be written. Raises NotAllowed."""
        if self.role == Role.VIEWER:
            raise NotAllowed("viewers cannot change anything")
        if not self.sees(namespace):
            raise NotAllowed(f"none of your teams owns the namespace {namespace}")

    def require_scope(self, scope: TokenScope) -> None:
        """Refuse an actor of another scope. Raises NotAllowed."""
        if self.scope != scope:
            raise NotAllowed(self.refusal(scope))

    def refusal(self, needed: TokenScope, *, node: str = "") -> str:
        """The sentence of a 403 that names the scope needed."""
        of_node = f" of node {node}" if node else ""
        own = f" of node {self.node}" if self.node else ""
        return f"this needs a token of scope {needed.value}{of_node}; the scope of this one is {self.scope.value}{own}"

    def require_node(self, node: str) -> None:
        """Refuse an agent that speaks for another node. Raises NotAllowed."""
        if self.node and self.node != node:
            raise NotAllowed(f"this token speaks for node {self.node} alone")

    def require_admin(self) -> None:
        """Refuse unless an admin. Raises NotAllowed."""
        if self.role != Role.ADMIN or self.scope != TokenScope.REST:
            raise NotAllowed("only admins may do this")


SYSTEM = Actor(name="system", role=Role.ADMIN, namespaces=None, service=True)
"""gpuplane itself: collectors, watches, management commands."""
