"""Every page of the product in a real browser, Django's admin and the API's documentation among them: none breaks the
content policy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from nodes.models import Device
from tests.browser.test_live_pages import Agent, agent
from tests.factories import PASSWORD, GpuClaimFactory
from tests.servers.web import LiveApp

__all__ = ["agent"]

COLLECT = """
document.addEventListener("securitypolicyviolation", (event) =>
  window.violated(`${location.pathname}: ${event.effectiveDirective} ${event.blockedURI} ` +
    `${event.sourceFile}:${event.lineNumber}`));
"""
PAGES = [
    "/",
    "/nodes/",
    "/nodes/n1/",
    "/usage/?range=1h",
    "/claims/",
    "/claims/new/",
    "/allocations/",
    "/pending/",
    "/events/",
    "/simulate/",
    "/accounts/",
    "/accounts/new/",
    "/teams/",
    "/teams/new/",
    "/tokens/",
    "/password/",
    "/nowhere/",
]


@pytest.fixture
def violations(page: Page, complaints: list[str]) -> Iterator[list[str]]:
    """What the browser refused, from here on."""
    found: list[str] = []

    def violated(told: str) -> None:  # playwright sets attributes of what it is given
        found.append(told)

    page.expose_function("violated", violated)
    page.add_init_script(COLLECT)
    yield found
    complaints[:] = [said for said in complaints if "404" not in said]  # /nowhere/, and the admin has no icon


@pytest.fixture
def root(page: Page, live_app: LiveApp) -> User:
    """Somebody who may see everything, signed in through the admin's own address."""
    user = User.objects.create_superuser(f"root-{User.objects.count()}", password=PASSWORD)
    page.goto("/admin/")
    page.wait_for_url("**/sign-in/?next=/admin/")
    page.get_by_label("User name").fill(user.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/admin/")
    return user


def test_the_pages(violations: list[str], page: Page, root: User, agent: Agent) -> None:
    """VIEW-6 live figures, charts and the heatmap at work."""
    agent.say(37, 5)
    device = Device.objects.get(node=agent.node, minor=0)
    for path in [*PAGES, f"/devices/{device.pk}/", f"/accounts/{root.pk}/"]:
        page.goto(path)
        expect(page.locator("h1").first).to_be_visible()
    assert violations == []


def test_the_admin(violations: list[str], page: Page, root: User, agent: Agent) -> None:
    """Lists and rows."""
    GpuClaimFactory(name="one")
    for model in admin.site._registry:
        at = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        page.goto(at)
        expect(page.locator("#changelist")).to_be_visible()
        row = model._default_manager.first()
        if row is not None:
            page.goto(f"{at}{row.pk}/change/")
            expect(page.locator("#content")).to_be_visible()
    page.goto("/admin/")
    expect(page.locator("#content")).to_be_visible()
    assert violations == []


def test_the_documentation_of_the_api(violations: list[str], page: Page, root: User) -> None:
    """It shows every endpoint, opens one, and asks it with the session of the page."""
    page.goto("/api/docs/")
    block = page.locator("#operations-fleet-fleet_summary_retrieve")
    expect(block).to_be_visible()
    block.click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    expect(block.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    assert violations == []
