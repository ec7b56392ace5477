"""What the tests of the fleet page share: where a GPU is on the screen, and what is painted there, by the page's DOM.

The attributes are documented in docs/fleet-stream.md.
"""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

_WHERE = """async ([node, minor]) => {
    const { breakLines, layOut } = await import("/static/js/fleet/arrange.js");
    const { readLayout } = await import("/static/js/fleet/frames.js");
    const { chooseGroups } = await import("/static/js/fleet/groups.js");
    const said = await new Promise((resolve) => {
        const socket = new WebSocket(`${location.origin.replace("http", "ws")}/ws/fleet/?columns=flags`);
        socket.onmessage = ({ data }) => {
            if (typeof data !== "string") return;
            resolve(data);
            socket.close();
        };
    });
    const layout = readLayout(JSON.parse(said));
    const groups = chooseGroups(layout, null, { type: "gpu", group: "rack", state: "", terms: [] }, () => []);
    const heat = document.querySelector(".heat");
    const lines = breakLines(groups, heat.clientWidth, heat.offsetHeight);
    const plan = layOut(groups, layout.devices.length, lines, Number(heat.dataset.cell));
    const row = layout.devices.findIndex((device) => device.node.name === node && device.minor === minor);
    const at = plan.placeOf[row];
    const bounds = heat.getBoundingClientRect();
    return [bounds.left + plan.x[at] - heat.scrollLeft, bounds.top + plan.y[at] - heat.scrollTop, plan.cell];
}"""
"""Left, top and size of a cell of a fleet of GPUs by rack, all of it shown: by the page's own modules."""


def ready(page: Page) -> Page:
    """Wait for the first picture."""
    page.wait_for_selector("#fleet[data-frames]")
    return painted(page)


def painted(page: Page) -> Page:
    """Wait until what the page holds is on the canvas: it paints with the screen's next frame."""
    page.evaluate("async () => { for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame); }")
    return page


def attribute(page: Page, name: str) -> str:
    """A documented attribute of the page."""
    return page.locator("#fleet").get_attribute(f"data-{name}") or ""


def shown(page: Page) -> int:
    """How many devices are on the map."""
    return int(attribute(page, "shown"))


def heads(page: Page) -> dict[str, int]:
    """Groups of the map, and how many devices each has."""
    return dict(json.loads(attribute(page, "groups")))


def expect_heads(page: Page, want: dict[str, int]) -> None:
    """The same, once it is so."""
    expect(page.locator("#fleet")).to_have_attribute(
        "data-groups", json.dumps([list(pair) for pair in want.items()], separators=(",", ":"), ensure_ascii=False)
    )


def expect_shown(page: Page, want: int) -> None:
    """So many devices are on the map, or will be in a moment."""
    expect(page.locator("#fleet")).to_have_attribute("data-shown", str(want))


def expect_columns(page: Page, *want: str) -> None:
    """These columns are asked for, or will be in a moment."""
    expect(page.locator("#fleet")).to_have_attribute("data-columns", ",".join(want))


def cell_size(page: Page) -> float:
    """CSS pixels of a cell."""
    return float(page.locator(".heat").get_attribute("data-cell") or 0)


def cell(page: Page, node: str, minor: int, *, part: float = 0.5) -> tuple[float, float]:
    """Where on the screen a GPU is: `part` of the way through its cell."""
    left, top, size = page.evaluate(_WHERE, [node, minor])
    return left + part * size, top + part * size


def colour(page: Page, node: str, minor: int) -> list[int]:
    """What is painted there, beside the number that a large cell may show."""
    x, y = cell(page, node, minor, part=0.2)
    painted(page)
    found: list[int] = page.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector("[data-cells]");
            const bounds = canvas.getBoundingClientRect();
            const scale = canvas.width / bounds.width;
            const [left, top] = [(x - bounds.left) * scale, (y - bounds.top) * scale];
            return [...canvas.getContext("2d").getImageData(left, top, 1, 1).data];
        }""",
        [x, y],
    )
    return found


def watch_paints(page: Page) -> None:
    """From now on `paints` knows how long each took."""
    page.evaluate("""() => {
        window.paintTimes = [];
        new PerformanceObserver((list) => {
            for (const { name, duration } of list.getEntries())
              if (name === "fleet paint") window.paintTimes.push(duration);
        }).observe({ type: "measure" });
    }""")


def paints(page: Page) -> list[float]:
    """Milliseconds of each paint since `watch_paints`."""
    times: list[float] = painted(page).evaluate("window.paintTimes")
    return times
