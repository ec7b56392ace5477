"""Pages of models, runners and slots in a real browser: they move with the slots, on any width."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from inference.choices import State
from inference.models import Model, Request, Runner, Slot
from tests.browser import models
from tests.slots import SlotWorld


@pytest.fixture
def ready() -> str:
    """Slots, one of them ready: its id. Those of before are gone."""
    for rows in (Request, Slot, Model, Runner):
        rows.objects.all().delete()
    return models.served()


def row_of(page: Page, slot: str) -> Locator:
    """The slot's row in the table of slots."""
    return page.locator("#slots tbody tr").filter(has=page.get_by_role("link", name=slot))


@pytest.mark.parametrize("width", [pytest.param(1360, id="desktop"), pytest.param(420, id="phone")])
def test_the_models_move(sign_in: Any, ready: str, width: int) -> None:
    """VIEW-2c SLOT-7b Without a reload: who waits and why, a slot that drains for another one and goes."""
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/inference/")
    chat = page.locator("#rows tbody tr").filter(has=page.get_by_role("link", name="meta/llama-3-8b"))
    expect(chat.first).to_contain_text("1 GPU: 15 GiB")
    expect(page.locator("#queue tr").filter(has_text="LoRA cats")).to_contain_text("no GPU has 90Gi free")
    expect(page.locator('[data-chart="tokens"] canvas')).to_be_visible()
    expect(page.locator('[data-chart="waited"] canvas')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"

    planned = Slot.objects.get(state=State.PLANNED)
    expect(row_of(page, planned.pk)).to_contain_text(f"waits for {', '.join(planned.evicts)} to go")
    SlotWorld().converge()
    expect(row_of(page, planned.pk)).to_contain_text("ready")
    for gone in planned.evicts:
        expect(row_of(page, gone)).to_contain_text("stopped")
    expect(page.locator("#queue tr").filter(has_text="code").first).to_contain_text("goes to a slot that is ready")


def test_an_operator_stops_a_slot(sign_in: Any, ready: str) -> None:
    """VIEW-2c SLOT-7b After a question; the page says that it drains, then that it has stopped, without a reload."""
    page: Page = sign_in()
    page.goto(f"/inference/slots/{ready}/")
    state = page.locator("#rows .tag")
    expect(state).to_have_text("Ready", ignore_case=True)
    page.get_by_role("button", name="Stop").click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("Stop this slot?")
    assert Slot.objects.get(pk=ready).state == State.READY, "nothing happens before the answer"
    asked.get_by_role("button", name="Stop").click()
    expect(state).to_have_text("Draining", ignore_case=True)
    SlotWorld().converge()
    expect(state).to_have_text("Stopped", ignore_case=True)
    expect(page.locator("#rows")).to_contain_text("stopped")


def test_what_a_slot_writes(sign_in: Any, ready: str) -> None:
    """VIEW-2c SLOT-1c The last lines come by themselves, as text whatever they are."""
    page: Page = sign_in()
    page.goto(f"/inference/slots/{ready}/")
    written = page.locator("#rows pre")
    expect(written).to_contain_text("layer 29 loaded")
    Slot.objects.filter(pk=ready).update(log_tail="<img src=x onerror='document.title=1'>")
    expect(written).to_have_text("<img src=x onerror='document.title=1'>")
    assert page.title() != "1"


def test_a_runners_memory(sign_in: Any, ready: str) -> None:
    """VIEW-2c SLOT-7b What slots claim of each GPU, as it changes; a link leads to the device."""
    page: Page = sign_in()
    page.goto("/inference/runners/")
    card = page.locator(".card").filter(has_text="models-1")
    first = Slot.objects.get(pk=ready).gpus[0]
    words = card.locator(".quota").nth(first).locator(".quota-words")
    expect(words).to_contain_text("30 GiB of 40 GiB claimed · not measured")
    Slot.objects.filter(state=State.PLANNED).delete()
    Request.objects.all().delete()
    Model.objects.all().delete()
    SlotWorld().converge()
    expect(words).to_contain_text("0 of 40 GiB claimed")
    card.get_by_role("link", name=f"GPU {first}").click()
    page.wait_for_url("**/devices/*/")
