"""The fleet page and its socket: gaps, breaks, a server that restarts, a session that ends."""

import re

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.browser.conftest import new_profile
from tests.browser.fleet import expect_columns, ready
from tests.factories import NodeFactory
from tests.fleet_feed import SOCKETS


@pytest.fixture
def context(browser, live_app):
    """A profile for each test: one of them stops the clock of all pages of its profile."""
    made = new_profile(browser, live_app.url)
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def fleet(live_app, browser):
    """A node of four GPUs."""
    NodeFactory(name="n1", gpus=4)


def test_a_broken_stream_is_said_and_comes_back(sign_in, page):
    """VIEW-1 a page that is not live says so."""
    sockets: list[WebSocketRoute] = []

    def through(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket(SOCKETS, through)
    ready(sign_in())
    banner = page.locator("#stream-banner")
    expect(banner).to_be_hidden()
    sockets[0].close(code=1013)
    expect(banner).to_contain_text("last known state")
    expect(banner).to_be_hidden()
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    assert len(sockets) == 2


def test_a_gap_is_answered_with_the_full_state(sign_in, page):
    """VIEW-1 a lost frame never leaves a wrong picture behind."""
    asked: list[str] = []
    lost: list[bytes] = []

    def lossy(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def from_page(message: str | bytes) -> None:
            asked.append(str(message))
            server.send(message)

        def from_server(message: str | bytes) -> None:
            if isinstance(message, bytes) and message[3] == 1 and not lost:
                lost.append(message)
            else:
                socket.send(message)

        socket.on_message(from_page)
        server.on_message(from_server)

    page.route_web_socket(SOCKETS, lossy)
    ready(sign_in())
    four_or_more = re.compile(r"^([4-9]|\d\d+)$")  # two frames may come at once
    expect(page.locator("#fleet")).to_have_attribute("data-frames", four_or_more)
    assert len(lost) == 1
    assert asked == ['{"ask":"full"}']


def test_a_session_that_ended_is_said(sign_in, page, context):
    sockets: list[WebSocketRoute] = []

    def through(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket(SOCKETS, through)
    ready(sign_in())
    context.clear_cookies()
    sockets[0].close(code=1013)
    expect(page.locator("#stream-banner")).to_contain_text("signed out")


def test_signed_out_is_the_last_word(sign_in, page):
    """VIEW-1 after its refusal the page neither tries again nor says that it is reconnecting."""
    refused: list[WebSocketRoute] = []

    def refuse(socket: WebSocketRoute) -> None:
        refused.append(socket)
        socket.close(code=4401)

    page.route_web_socket(SOCKETS, refuse)
    page.clock.install()
    sign_in()
    banner = page.locator("#stream-banner")
    expect(banner).to_contain_text("signed out")
    page.clock.run_for(60_000)  # longer than any pause between two attempts, and than anybody stays silent
    page.evaluate("""() => {
        window.dispatchEvent(new Event("online"));
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    page.clock.run_for(60_000)
    expect(banner).to_contain_text("signed out")
    assert len(refused) == 1


def test_a_server_that_restarts_is_found_again(sign_in, live_app, complaints):
    """VIEW-1 the page says that it is not live while the server is away, and is live again by itself, with what is true
    then.
    """
    page = ready(sign_in())
    page.get_by_role("button", name="Utilisation").click()
    live_app.stop()
    expect(page.locator("#stream-banner")).to_contain_text("last known state")
    size = page.locator("[data-fleet-size]")
    expect(size).to_have_text("1 nodes · 4 devices")
    NodeFactory(name="n2", gpus=2)
    live_app.start()
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    expect(page.locator("#stream-banner")).to_be_hidden()
    expect(page.locator("[data-figure=total]")).to_have_text("6")
    expect(size).to_have_text("2 nodes · 6 devices")
    expect_columns(page, "utilisation")
    page.get_by_role("application").focus()
    page.keyboard.press("End")
    expect(page.locator("#fleet-speech")).to_have_text("n2, gpu 1, free, utilisation unknown")
    refused = ("ERR_CONNECTION_REFUSED", "htmx:afterRequest", "htmx:sendError")  # logged by Chromium and htmx each time
    complaints[:] = [one for one in complaints if not any(words in one for words in refused)]
