"""Every page at two sizes in both themes, kept as pictures to look at (`screenshots/`); nothing may be wider than the
screen, or complain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from nodes.models import Device
from tests.browser import groups, growth, models, queues
from tests.browser.test_live_pages import Agent, agent
from tests.servers.web import LiveApp

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
    "reservations": "/reservations/",
    "node-of-kubelet": "/nodes/p1/",
    "node-put-off": "/nodes/p2/",
    "device-reserved": "/devices/{reserved}/",
    "pending-put-off": "/pending/research/waits/",
    "queues": "/queues/",
    "queue": "/queues/training/",
    "gangs": "/gangs/",
    "gang": "/gangs/research/ring/",
    "scaling": "/scaling/",
    "models": "/inference/",
    "model": "/inference/models/meta/llama-3-8b/",
    "runners": "/inference/runners/",
    "slot": "/inference/slots/{slot}/",
    "pending": "/pending/",
    "events": "/events/",
    "what-if": "/simulate/",
    "tokens": "/tokens/",
}
SETTLED = "() => document.querySelector('.live')?.dataset.state !== 'connecting'"


@pytest.fixture(scope="module", autouse=True)
def decided(agent: Agent) -> None:
    """Queues and a gang, decided about; a node that is being launched."""
    queues.decided()
    growth.launching()


@pytest.fixture(scope="module")
def slot(plugged: Agent) -> str:
    """The id of a slot, among others."""
    assert plugged
    return models.served()


@pytest.fixture(scope="module")
def plugged(live_app: LiveApp, decided: None) -> Agent:
    """The agent of a node whose GPUs are behind reservation pods."""
    assert decided is None
    first, _ = groups.reserved()
    return Agent(live_app, first)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page(sign_in: Any, agent: Agent, plugged: Agent, slot: str, size: str, theme: Any) -> None:
    """Light and dark, laptop and phone."""
    agent.say(37, 5)
    agent.tell(process="trainer")
    width, height = SIZES[size]
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=theme)
    FOLDER.mkdir(exist_ok=True)
    device = Device.objects.get(node=agent.node, minor=0).pk
    reserved = Device.objects.get(uuid="GPU-p1-5").pk
    for name, path in PAGES.items():
        plugged.say(*[20] * 8, memory_used_bytes=[11 << 30] * 8)
        page.goto(path.format(device=device, reserved=reserved, slot=slot))
        page.wait_for_function(SETTLED)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate("document.documentElement.dataset.bsTheme") == theme
        taken = page.screenshot(path=FOLDER / f"{name}-{theme}-{size}.png", full_page=True)
        assert len(taken) > 10_000, "a page that shows nothing"


@pytest.mark.parametrize("width", [390, 1024, 1920])
def test_the_list_of_waiting_pods_fits_its_card(sign_in: Any, width: int) -> None:
    """VIEW-1 a long reason is cut with an ellipsis, and does not push aside since when its pod waits."""
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": 800})
    page.goto("/")
    table = page.locator(".table-responsive", has=page.get_by_text("queue training holds").first)
    expect(table.locator("time").first).to_be_visible()
    assert table.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0
    assert table.locator(".clip").first.evaluate("(cell) => cell.clientWidth") > 100


def test_what_a_scheduler_has_not_said_yet_is_whole_sentences(sign_in: Any) -> None:
    """VIEW-3 on the page of a pod that nothing was said about."""
    page: Page = sign_in()
    page.goto("/pending/research/fit-1/")
    says = "default-scheduler has said nothing yet. It has not asked gpuplane about this pod."
    expect(page.locator("#scheduler-says")).to_have_text(says)


def test_the_sign_in_page(page: Page) -> None:
    """Before anybody is signed in."""
    FOLDER.mkdir(exist_ok=True)
    page.goto("/sign-in/")
    page.screenshot(path=FOLDER / "sign-in-light-laptop.png")
    assert page.get_by_label("Password").is_visible()
