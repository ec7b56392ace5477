"""What the fleet page costs a browser: a real Chromium, the real page, frames of the real bytes.

Called by `frames`. The floor is an image as large as the heatmap put on a canvas of its own by the same browser, with
nothing in it to work out.
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
    const { width, height } = document.querySelector("[data-cells]");
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d", { alpha: false });
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const times = [];
    for (let i = 0; i < count; i++) {
        const began = performance.now();
        pixels.fill(0xff000000 + i);
        context.putImageData(image, 0, 0);
        times.push(performance.now() - began);
    }
    return times;
}"""
_WATCH = """() => {
    window.took = { "fleet paint": [], "fleet frame": [] };
    new PerformanceObserver((list) => {
        for (const { name, duration } of list.getEntries()) window.took[name]?.push(duration);
    }).observe({ type: "measure" });
}"""
_FORGET = "() => { for (const times of Object.values(window.took)) times.length = 0; }"
_PAINTED = """async (number) => {
    while (Object.values(window.took).some((times) => times.length <= number)) await new Promise(requestAnimationFrame);
}"""
_ZOOM = """async (count) => {
    const paints = window.took["fleet paint"];
    const before = paints.length;
    for (let i = 0; i < count; i++) {
        document.querySelector("[data-zoom='1']").click();
        while (paints.length <= before + i) await new Promise(requestAnimationFrame);
    }
    const times = paints.slice(before);
    document.querySelector("[data-zoom='0']").click();
    while (paints.length <= before + count) await new Promise(requestAnimationFrame);
    return times;
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
        page.evaluate(_FORGET)
        for number in range(FRAMES_A_ROUND):
            feed.tick()
            page.evaluate(_PAINTED, number)
        for rounds, times in (
            (paints, page.evaluate("window.took['fleet paint']")),
            (reads, page.evaluate("window.took['fleet frame']")),
            (zooms, page.evaluate(_ZOOM, FRAMES_A_ROUND)),
        ):
            rounds.product.append([int(took * 1e6) for took in times])
            rounds.floor.append(floor)
    size = page.locator("[data-cells]").evaluate("({ width, height }) => `${width} × ${height}`")
    told = f"the floor puts an image of {size} pixels"
    report.add(timed_figure(f"fleet page, {feed.rows:,} GPUs, a frame painted", paints, note=told))
    report.add(timed_figure("fleet page, a frame read, choosing included", reads))
    report.add(timed_figure("fleet page, painted while zooming, words included", zooms))
