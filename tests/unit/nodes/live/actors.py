"""Who may speak for node n1, and who may not."""

from __future__ import annotations

from dataclasses import replace

from access.actors import Actor
from access.choices import Role, TokenScope


def agent_of(node: str) -> Actor:
    """The node's agent."""
    return Actor(name=f"agent@{node}", role=Role.VIEWER, service=True, node=node, scope=TokenScope.AGENT)


AGENT = agent_of("n1")
OTHERS = (
    Actor(name="a viewer", role=Role.VIEWER),
    Actor(name="an admin", role=Role.ADMIN, namespaces=None),
    Actor(name="another machine", role=Role.VIEWER, service=True, scope=TokenScope.INVENTORY),
    replace(agent_of("n2"), name="another node's agent"),
)
