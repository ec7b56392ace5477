"""Every page at two sizes in both themes, kept as pictures to look at (`screenshots/`); nothing may be wider than the
screen, or complain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from nodes.models import Device
from tests.browser import queues
from tests.browser.test_live_pages import Agent, agent

__all__ = ["agent"]
FOLDER = Path(__file__).resolve().parents[2] / "screenshots"
SIZES = {"laptop": (1366, 768), "phone": (390, 844)}
PAGES = {
    "fleet": "/",
    "nodes": "/nodes/",
    "node": "/nodes/n1/",
    "device": "/devices/{device}/",
    "usage": "/usage/?range=1h",
    "claims": "/claims/",
    "claim": "/claims/research/own/",
    "claim-new": "/claims/new/",
    "allocations": "/allocations/",
    "queues": "/queues/",
    "queue": "/queues/training/",
    "gangs": "/gangs/",
    "gang": "/gangs/research/ring/",
    "pending": "/pending/",
    "events": "/events/",
    "what-if": "/simulate/",
}
SETTLED = "() => document.querySelector('.live')?.dataset.state !== 'connecting'"


@pytest.fixture(scope="module", autouse=True)
def decided(agent: Agent) -> None:
    """Queues and a gang, decided about."""
    queues.decided()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page(sign_in: Any, agent: Agent, size: str, theme: Any) -> None:
    """Light and dark, laptop and phone."""
    agent.say(37, 5)
    agent.tell(process="trainer")
    width, height = SIZES[size]
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=theme)
    FOLDER.mkdir(exist_ok=True)
    for name, path in PAGES.items():
        page.goto(path.format(device=Device.objects.get(node=agent.node, minor=0).pk))
        page.wait_for_function(SETTLED)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate("document.documentElement.dataset.bsTheme") == theme
        taken = page.screenshot(path=FOLDER / f"{name}-{theme}-{size}.png", full_page=True)
        assert len(taken) > 10_000, "a page that shows nothing"


def test_the_sign_in_page(page: Page) -> None:
    """Before anybody is signed in."""
    FOLDER.mkdir(exist_ok=True)
    page.goto("/sign-in/")
    page.screenshot(path=FOLDER / "sign-in-light-laptop.png")
    assert page.get_by_label("Password").is_visible()
