"""A real Chromium against the real web process. A page that logs an error or breaks the content policy fails its test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from access.choices import Role
from tests.factories import PASSWORD, UserFactory
from tests.servers.web import LiveApp

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SignIn = Callable[..., Page]
expect.set_options(timeout=15_000)  # refreshes come every 5 s; a machine at work is slow


@pytest.fixture(scope="module")
def browser(chromium: str, live_app: LiveApp) -> Iterator[Browser]:
    """The browser, started once a module and ended with it.

    Playwright's own event loop runs in the thread of the tests meanwhile. Django would refuse every query there,
    so it is told that this is meant; and it keeps another connection for that loop, which must not outlive the
    module's database.
    """
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()
        connections.close_all()
        with contextlib.suppress(AttributeError):
            del connections["default"]


@pytest.fixture
def context(browser: Browser, live_app: LiveApp) -> Iterator[BrowserContext]:
    """A fresh profile."""
    made = browser.new_context(base_url=live_app.url, viewport={"width": 1440, "height": 900}, color_scheme="light")
    made.set_default_timeout(15_000)
    yield made
    made.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the pages logged as errors; a test that expects some empties it."""
    return []


@pytest.fixture
def page(context: BrowserContext, complaints: list[str]) -> Iterator[Page]:
    """A tab; nothing may be logged as an error in it."""
    tab = context.new_page()

    def said(message: ConsoleMessage) -> None:
        ours = "getImageData" in message.text  # the tests read the canvas back, the page never does
        if message.type in {"error", "warning"} and not ours:
            complaints.append(message.text)

    tab.on("console", said)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    yield tab
    assert complaints == []


@pytest.fixture
def sign_in(page: Page) -> SignIn:
    """`sign_in(Role.VIEWER, "research")`: a fresh account, through the form; gives the tab, on the fleet page."""

    def enter(role: Role = Role.ADMIN, *namespaces: str) -> Page:
        user = UserFactory(role=role, namespaces=namespaces)
        page.goto("/sign-in/")
        page.get_by_label("User name").fill(user.username)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/")
        return page

    return enter
