"""What the tests of the fleet page share: where a GPU is on the screen, and what is painted there."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page


def ready(page: Page) -> Page:
    """Wait for the first picture."""
    page.wait_for_selector("#fleet[data-frames]")
    return painted(page)


def painted(page: Page) -> Page:
    """Wait until what the page holds is on the canvas."""
    page.evaluate("""async () => {
        do await new Promise(requestAnimationFrame); while (window.gpuplaneFleet.map.queued);
    }""")
    return page


def look(page: Page, what: str) -> Any:
    """A value that the page holds: `map.camera.zoom`."""
    return page.evaluate(f"window.gpuplaneFleet.{what}")


def cell(page: Page, node: str, minor: int, *, part: float = 0.5) -> tuple[float, float]:
    """Where on the screen a GPU is: `part` of the way through its cell."""
    place = page.evaluate(
        """([node, minor]) => {
            const { map, layout } = window.gpuplaneFleet;
            const row = layout.devices.findIndex((device) => device.node.name === node && device.minor === minor);
            return map.boundsOf(map.plan.placeOf[row]);
        }""",
        [node, minor],
    )
    across, down = (
        place[low] + part * (place[high] - place[low]) for low, high in (("left", "right"), ("top", "bottom"))
    )
    return across, down


def colour(page: Page, node: str, minor: int) -> list[int]:
    """What is painted there, beside the number that a large cell may show."""
    painted(page)
    x, y = cell(page, node, minor, part=0.2)
    found: list[int] = page.evaluate(
        """([x, y]) => {
            const canvas = window.gpuplaneFleet.map.canvas;
            const bounds = canvas.getBoundingClientRect();
            const scale = canvas.width / bounds.width;
            return [...canvas.getContext("2d").getImageData((x - bounds.left) * scale, (y - bounds.top) * scale, 1, 1).data];
        }""",
        [x, y],
    )
    return found


def heads(page: Page) -> dict[str, int]:
    """Groups that stand over the trays, and how many devices each has."""
    return dict(page.evaluate("window.gpuplaneFleet.map.groups.map(({ name, count }) => [name, count])"))
