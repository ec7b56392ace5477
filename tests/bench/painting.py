"""What the fleet page costs a browser: a real Chromium, the real page, frames of the real bytes.

Called by `frames`. The floor is an image as large as the heatmap put on a canvas of its own by the same browser, with nothing in it
to work out.
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.bench.figures import Report, timed_figure
from tests.bench.wire import Rounds
from tests.factories import PASSWORD, UserFactory
from tests.fleet_feed import Feed
from tests.servers import chromium, redis, web

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FRAMES_A_ROUND = 5
_FLOOR = """(count) => {
    const { map } = window.gpuplaneFleet;
    const canvas = document.createElement("canvas");
    canvas.width = map.image.width;
    canvas.height = map.image.height;
    const context = canvas.getContext("2d", { alpha: false });
    const times = [];
    for (let i = 0; i < count; i++) {
        const began = performance.now();
        map.pixels.fill(0xff000000 + i);
        context.putImageData(map.image, 0, 0);
        times.push(performance.now() - began);
    }
    return times;
}"""
_WATCH = """() => {
    const { stream } = window.gpuplaneFleet;
    const receive = stream.receive;
    window.received = [];
    stream.receive = function (data) {
        const began = performance.now();
        receive.call(stream, data);
        window.received.push(performance.now() - began);
    };
}"""
_PAINTED = """async (number) => {
    while (window.received.length <= number || window.gpuplaneFleet.paints.length <= number) {
        await new Promise(requestAnimationFrame);
    }
}"""
_ZOOM = """async (count) => {
    const { map, paints } = window.gpuplaneFleet;
    const before = paints.length;
    for (let i = 0; i < count; i++) {
        map.camera.zoomTo(1 + ((i * 0.37) % 5));
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
    }
    map.camera.step(0);
    return paints.slice(before);
}"""


def measure_painting(report: Report, folder: Path, *, nodes: int, frames: int) -> None:
    """Time to read a frame, to paint it, and to paint while zooming. Left out, and said, where there is no Chromium."""
    try:
        path = chromium.executable()
    except chromium.NoChromium as missing:
        report.machine["painting_left_out"] = str(missing)
        return
    with (
        web.running(vendor="sqlite", folder=folder / "page", redis_url=redis.server_url("bench")) as app,
    ):
        user = UserFactory()  # before Playwright's event loop runs in this thread
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
            page = browser.new_page(base_url=app.url, viewport={"width": 1366, "height": 768})
            page.goto("/sign-in/")
            page.get_by_label("User name").fill(user.username)
            page.get_by_label("Password").fill(PASSWORD)
            feed = Feed(nodes)
            feed.attach(page)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_selector("#fleet[data-frames]")
            _measure(report, page, feed, frames)
            browser.close()


def _measure(report: Report, page: Page, feed: Feed, frames: int) -> None:
    page.get_by_role("button", name="Utilisation").click()
    page.evaluate(_WATCH)
    paints, reads, zooms = Rounds(), Rounds(), Rounds()
    for _ in range(max(2, frames // FRAMES_A_ROUND)):
        floor = [int(took * 1e6) for took in page.evaluate(_FLOOR, FRAMES_A_ROUND)]
        page.evaluate("window.received.length = window.gpuplaneFleet.paints.length = 0")
        for number in range(FRAMES_A_ROUND):
            feed.tick()
            page.evaluate(_PAINTED, number)
        for rounds, times in (
            (paints, page.evaluate("window.gpuplaneFleet.paints")),
            (reads, page.evaluate("window.received")),
            (zooms, page.evaluate(_ZOOM, FRAMES_A_ROUND)),
        ):
            rounds.product.append([int(took * 1e6) for took in times])
            rounds.floor.append(floor)
    size = page.evaluate("(({ image }) => `${image.width} × ${image.height}`)(window.gpuplaneFleet.map)")
    told = f"the floor puts an image of {size} pixels"
    report.add(timed_figure(f"fleet page, {feed.rows:,} GPUs, a frame painted", paints, note=told))
    report.add(timed_figure("fleet page, a frame read, choosing included", reads))
    report.add(timed_figure("fleet page, painted while zooming, words included", zooms))
