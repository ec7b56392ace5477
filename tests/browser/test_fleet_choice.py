"""What the fleet page shows, points at and says of devices: only what it knows; by a make-believe fleet."""

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.fleet import cell, expect_columns, expect_shown, ready, shown
from tests.fleet_feed import Feed

RECORD_SHOWN = """() => {
    const page = document.querySelector("#fleet");
    window.shownCounts = [];
    const seen = new MutationObserver(() => window.shownCounts.push(Number(page.dataset.shown)));
    seen.observe(page, { attributeFilter: ["data-shown"] });
}"""


@pytest.fixture
def feed(page):
    """512 GPUs in eight racks, of which the first is given away."""
    made = Feed(64)
    made.columns[0, 0] = made.columns[1, 0] = 100
    made.attach(page)
    page.route("**/devices/*/card/", lambda route: route.fulfill(body=""))  # the server knows none of its devices
    return made


@pytest.fixture
def by_utilisation(feed, sign_in) -> Page:
    """The page of that fleet, which has been told of utilisation and of nothing else."""
    page: Page = sign_in()
    page.goto("/?by=utilisation")
    return ready(page)


def test_a_state_is_spoken_once_it_is_known(feed, by_utilisation):
    """VIEW-1 a screen reader is never told that a device is free when all that is missing is the answer."""
    by_utilisation.get_by_role("application").focus()
    by_utilisation.keyboard.press("Home")
    speech = by_utilisation.locator("#fleet-speech")
    expect(speech).to_have_text(f"gpu-00000, gpu 0, in use, utilisation {feed.columns[2, 0]}%")


def test_a_state_is_filtered_by_once_it_is_known(feed, by_utilisation):
    """VIEW-1 nothing is shown as free before it is known what is held."""
    by_utilisation.evaluate(RECORD_SHOWN)
    by_utilisation.get_by_label("State", exact=True).select_option("free")
    free = int(np.count_nonzero((feed.columns[:2].max(axis=0) == 0) & (feed.columns[7] == 19)))
    expect(by_utilisation.locator("[data-fleet-size]")).to_contain_text(f"{free} shown")
    assert by_utilisation.evaluate("window.shownCounts") == [free]


def test_an_interrupted_stream_leaves_the_last_known_state_to_filter_by(feed, sign_in):
    """VIEW-1 what is shown while the stream is away is what was last known, and can be looked through."""
    page = ready(sign_in())
    feed.interrupt()
    expect(page.locator(".live")).to_have_attribute("data-state", "stale")
    page.get_by_label("State", exact=True).select_option("trouble")
    expect(page.locator("[data-fleet-size]")).to_contain_text("12 shown")
    assert shown(page) == 12


@pytest.mark.parametrize("by_key", [pytest.param(True, id="by keyboard"), pytest.param(False, id="by mouse")])
def test_the_card_goes_with_its_device(feed, sign_in, by_key):
    """VIEW-1 a filter that takes the pointed device away takes its card along, and what was asked for the
    card's sake.
    """
    page = ready(sign_in())
    if by_key:
        page.get_by_role("application").focus()
        page.keyboard.press("Home")
    else:
        page.mouse.move(*cell(page, "gpu-00000", 0))
    card = page.locator("#device-card")
    expect(card).to_contain_text("gpu-00000 · GPU 0")
    expect_columns(page, "core", "memory", "memory_in_use", "nvlink", "power", "temperature", "utilisation")
    page.evaluate("""() => {
        const field = document.querySelector("#fleet-filter"); // as a script does: the map keeps the focus
        field.value = "rack:r004";
        field.dispatchEvent(new Event("input"));
    }""")
    expect_shown(page, 64)
    expect(card).to_be_hidden()
    expect_columns(page, "core", "memory")
