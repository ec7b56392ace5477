"""Presence on both databases."""

from __future__ import annotations

import pytest

from nodes.live.agent_liveness import Writer
from nodes.live.samples import LastHeard
from storage.clock import database_now
from tests.factories import NodeFactory

pytestmark = pytest.mark.usefixtures("ledger_db")


@pytest.mark.parametrize("boot", ["\x00", "b" * 100], ids=["NUL", "too long"])
def test_a_boot_that_cannot_be_written_makes_nobody_look_silent(boot: str) -> None:
    """LEASE-5 one agent's odd boot costs no other node its presence (PostgreSQL takes no NUL, and bounds lengths)."""
    good, odd = NodeFactory(name="good"), NodeFactory(name="odd")
    Writer().write(heard={"good": LastHeard("b1", 0.0), "odd": LastHeard(boot, 0.0)}, now=database_now())
    good.refresh_from_db()
    odd.refresh_from_db()
    assert good.agent_seen_at is not None
    assert odd.agent_seen_at is not None
