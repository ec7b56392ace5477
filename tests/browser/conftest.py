"""A real Chromium against the real web process.

A page that logs an error or breaks the content policy fails its test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

from access.choices import Role
from tests.factories import UserFactory
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


def new_profile(browser: Browser, url: str) -> BrowserContext:
    """A profile with nothing in it."""
    made = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900}, color_scheme="light")
    made.set_default_timeout(15_000)
    return made


@pytest.fixture(scope="module")
def profile(browser: Browser, live_app: LiveApp) -> Iterator[BrowserContext]:
    """One for a module: its cache has the scripts and styles, which each test would load again."""
    made = new_profile(browser, live_app.url)
    yield made
    made.close()


@pytest.fixture
def context(profile: BrowserContext) -> BrowserContext:
    """The module's profile, without cookies, storage and pages. A test that stops the page's clock needs its own."""
    profile.clear_cookies()
    return profile


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
    with contextlib.suppress(Error):  # a page that could not be loaded has no storage
        tab.evaluate("localStorage.clear()")
    tab.close()
    assert complaints == []


@pytest.fixture
def sign_in(page: Page, context: BrowserContext, live_app: LiveApp) -> SignIn:
    """`sign_in(Role.VIEWER, "research")`: a fresh account, signed in; gives the tab, on the fleet page.

    By a session in the database: the form has tests of its own.
    """

    def enter(role: Role = Role.ADMIN, *namespaces: str) -> Page:
        client = Client()
        client.force_login(UserFactory(role=role, namespaces=namespaces))
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_app.url}])
        page.goto("/")
        return page

    return enter
