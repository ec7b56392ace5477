"""The form that resizes a share, on the allocation's page, which refreshes itself around it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from access.actors import SYSTEM
from access.choices import Role
from allocations import fleet
from allocations.models import Allocation
from allocations.services import claim_devices
from claims.models import GpuClaim
from tests.browser.test_live_pages import Agent, agent
from tests.factories import GpuClaimFactory

__all__ = ["agent"]


@pytest.fixture
def share(agent: Agent) -> Allocation:
    """A share that a client over REST has."""
    fleet.forget()
    claim: GpuClaim = GpuClaimFactory(
        namespace="research", name="part", spec={"devices": {"count": 1, "core": 30, "memory": "8Gi"}}
    )
    return claim_devices(claim=claim, actor=SYSTEM)


def test_a_share_is_resized(sign_in: Any, share: Allocation, complaints: list[str]) -> None:
    """SHARE-6b VIEW-2 what is typed outlives a refresh of the page, and the page shows what became of it."""
    page: Page = sign_in(role=Role.ADMIN)
    page.goto(f"/allocations/{share.pk}/")
    page.get_by_label("Core, percent").fill("60")
    with page.expect_response(lambda answer: answer.url.endswith(f"/allocations/{share.pk}/"), timeout=20_000):
        pass  # its own refresh, every 5 s
    expect(page.get_by_label("Core, percent")).to_have_value("60")
    for width, height in ((390, 844), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Resize").click()
    expect(page.get_by_text("The share has its new amounts")).to_be_visible()
    expect(page.locator("#allocation").get_by_text("60 %")).to_be_visible()
    page.get_by_label("Memory").fill("9000Gi")
    page.get_by_role("button", name="Resize").click()
    expect(page.get_by_text("fewer than")).to_be_visible()
    expect(page.get_by_label("Memory")).to_have_value("9000Gi")
    with page.expect_response(lambda answer: answer.url.endswith(f"/allocations/{share.pk}/"), timeout=20_000):
        pass  # the refused form's page refreshes itself too
    for width, height in ((390, 844), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    complaints[:] = [said for said in complaints if "400" not in said]  # the form that was refused
    grant = share.devices.get()
    assert (grant.core_percent, grant.memory_bytes) == (60, 8 << 30)
    assert not complaints
