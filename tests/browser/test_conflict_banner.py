"""What pages say while two pods run with one device: on every page, no wider than the screen, and gone when it
is over.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from nodes.models import Device
from nodes.revisions import next_revision
from tests.browser.test_live_pages import Agent, agent
from tests.browser.test_screenshots import FOLDER, SETTLED, SIZES

__all__ = ["agent"]


def dispute(agent: Agent, conflict: str) -> Device:
    found = Device.objects.filter(node=agent.node, minor__in=(0, 1))
    found.update(conflict=conflict, revision=next_revision())
    return found.get(minor=0)


@pytest.mark.parametrize("size", SIZES)
def test_the_banner(sign_in: Any, agent: Agent, size: str) -> None:
    """VIEW-4 with links to the devices; the device's page says who."""
    device = dispute(agent, "research/intruder")
    width, height = SIZES[size]
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": height})
    FOLDER.mkdir(exist_ok=True)
    for name, path in {"fleet": "/", "node": "/nodes/n1/", "device": f"/devices/{device.pk}/"}.items():
        page.goto(path)
        page.wait_for_function(SETTLED)
        expect(page.get_by_role("alert")).to_contain_text("2 devices are used by two pods")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page.screenshot(path=FOLDER / f"conflict-{name}-{size}.png")
    expect(page.locator("#device-state")).to_contain_text("research/intruder runs with it")
    page.get_by_role("alert").get_by_role("link").first.click()
    expect(page).to_have_url(f"{page.url.split('/devices/')[0]}/devices/{device.pk}/")
    dispute(agent, "")
    page.goto("/")
    expect(page.get_by_role("alert")).to_have_count(0)
