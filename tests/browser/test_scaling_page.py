"""The scaling page in a real browser: a node's timeline and the chart move as NodeClaims do, on any width."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from autoscaling.models import NodeClaim, ScalingRequest, Trigger
from storage.clock import database_now
from tests.browser import growth


@pytest.fixture
def request_of_a_node() -> Trigger:
    """One whose node is being launched."""
    return growth.launching()


def steps(page: Page) -> list[tuple[str, str]]:
    """(label and seconds, class) of each step of the first node."""
    found: list[tuple[str, str]] = (
        page.locator(".way")
        .first.locator("li")
        .evaluate_all("all => all.map((one) => [one.firstChild.textContent.trim(), one.className])")
    )
    return [(label, tone) for label, tone in found]


@pytest.mark.parametrize("width", [pytest.param(1360, id="desktop"), pytest.param(420, id="phone")])
def test_a_nodes_way_moves(sign_in: Any, request_of_a_node: Trigger, width: int) -> None:
    """VIEW-2 SCALE-3 Without a reload: the step that is awaited, the inventory, and the chart's first point."""
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/scaling/")
    awaited = page.locator(".way li.now")
    expect(awaited).to_contain_text("Launched")
    assert dict(steps(page))["NodeClaim created"] == "done"
    expect(page.locator("#provision .empty-note")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"

    now = database_now()
    times = dict.fromkeys(("launched_at", "registered_at"), now + timedelta(seconds=9))
    NodeClaim.objects.update(**times)
    expect(awaited).to_contain_text("Initialized")
    NodeClaim.objects.update(
        **dict.fromkeys(("initialized_at", "ready_at", "inventory_at"), now + timedelta(seconds=21)), node="h100-x"
    )
    Trigger.objects.update(state="served", node="h100-x")
    ScalingRequest.objects.update(state="served")
    expect(awaited).to_have_count(0)
    assert {tone for _, tone in steps(page)} == {"done"}
    expect(page.locator('[data-chart="provision"]')).to_have_attribute("data-points", "1")
    expect(page.locator("#provision .empty-note")).to_have_count(0)


def test_another_pools_node_makes_the_chart_anew(sign_in: Any, request_of_a_node: Trigger) -> None:
    """VIEW-2 The chart of before is gone: a change of the theme draws one chart."""
    now = database_now()
    ready = dict.fromkeys(("launched_at", "registered_at", "initialized_at", "ready_at", "inventory_at"), now)
    NodeClaim.objects.update(**ready, created_at=now - timedelta(seconds=40))
    page: Page = sign_in()
    page.goto("/scaling/")
    chart = page.locator('[data-chart="provision"]')
    expect(chart).to_have_attribute("data-points", "1")
    NodeClaim.objects.create(
        name="a100-x", uid="c2", pool="a100", trigger="u", created_at=now - timedelta(seconds=50), **ready
    )
    expect(chart).to_have_attribute("data-points", "2")
    page.emulate_media(color_scheme="dark")
    marker = chart.locator(".u-legend .u-series").nth(1).locator(".u-marker")
    expect(marker).to_have_css("border-top-color", "rgb(86, 180, 233)")
    expect(chart.locator(".uplot")).to_have_count(1)


def test_an_operator_cancels(sign_in: Any, request_of_a_node: Trigger) -> None:
    """VIEW-2 SCALE-4 The request says by whom, and has no button any more."""
    page: Page = sign_in()
    page.goto("/scaling/")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".growth .tag")).to_have_text("Cancelled")
    expect(page.locator(".growth")).to_contain_text("cancelled by")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    request_of_a_node.refresh_from_db()
    assert request_of_a_node.state == "withdrawn"
