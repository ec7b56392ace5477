"""The fleet page: the heatmap shows the ledger, moves with it, and can be used by mouse and by keyboard."""

import pytest
from django.utils import timezone
from playwright.sync_api import Page, WebSocketRoute, expect

from access.choices import Role
from allocations.models import Allocation
from allocations.services import release_now
from tests.extender import bound, filtered, pod_manifest
from tests.factories import NodeFactory


@pytest.fixture(scope="module", autouse=True)
def fleet(live_app, browser):
    """Three nodes of four GPUs in two racks; `research/holder` has two GPUs of n1."""
    for name, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
        NodeFactory(name=name, gpus=4, labels={"rack": rack})
    pod = pod_manifest("holder", resources={"nvidia.com/gpu": "2"})
    assert bound(pod, filtered(pod, ["n1"])) == ""


def ready(page: Page) -> Page:
    """Wait for the first picture, which is drawn at once."""
    page.wait_for_selector("#fleet[data-frames]")
    return page


def cell(page: Page, node: str, minor: int) -> tuple[float, float]:
    """Where on the screen a GPU is."""
    place = page.evaluate(
        """([node, minor]) => {
            const { map, layout } = window.gpuplaneFleet;
            const row = layout.devices.findIndex((device) => device.node.name === node && device.minor === minor);
            return map.boundsOf(map.plan.placeOf.get(row));
        }""",
        [node, minor],
    )
    return (place["left"] + place["right"]) / 2, (place["top"] + place["bottom"]) / 2


def colour(page: Page, node: str, minor: int) -> list[int]:
    """What is painted there."""
    x, y = cell(page, node, minor)
    painted: list[int] = page.evaluate(
        """([x, y]) => {
            const canvas = window.gpuplaneFleet.map.canvas;
            const bounds = canvas.getBoundingClientRect();
            const scale = canvas.width / bounds.width;
            return [...canvas.getContext("2d").getImageData((x - bounds.left) * scale, (y - bounds.top) * scale, 1, 1).data];
        }""",
        [x, y],
    )
    return painted


def test_the_heatmap_shows_the_ledger_and_moves_with_it(sign_in):
    """VIEW-1 every device is drawn, used ones unlike free ones, and a bind is seen within moments."""
    page = ready(sign_in())
    expect(page.locator("[data-figure=total]")).to_have_text("12")
    expect(page.locator("[data-figure=used]")).to_have_text("2")
    expect(page.locator("[data-fleet-size]")).to_have_text("3 nodes · 12 devices · 2 racks")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    used = [minor for minor in range(4) if page.evaluate(f"window.gpuplaneFleet.columns.core[{minor}]") == 100]
    free = colour(page, "n3", 0)
    assert len(used) == 2
    assert colour(page, "n1", used[0]) != free
    assert colour(page, "n2", 0) == free

    pod = pod_manifest("mover", resources={"nvidia.com/gpu": "4"})
    assert bound(pod, filtered(pod, ["n3"])) == ""
    expect(page.locator("[data-figure=used]")).to_have_text("6")
    assert colour(page, "n3", 0) == colour(page, "n1", used[0])
    allocation = Allocation.objects.get(pod_name="mover")
    release_now(allocation_id=allocation.pk, reason="test", now=timezone.now(), actor="test")
    expect(page.locator("[data-figure=used]")).to_have_text("2")
    assert colour(page, "n3", 0) == free


def test_marks_do_not_depend_on_colour(sign_in, fleet):
    """An unhealthy device and a node that is not ready look different in one and the same colour."""
    from nodes import revisions
    from nodes.models import Device, Node

    page = ready(sign_in())
    before = colour(page, "n2", 1)
    Device.objects.filter(node__name="n2", minor=1).update(healthy=False, revision=revisions.next_revision())
    expect(page.locator("[data-figure=unhealthy]")).to_have_text("1")
    assert colour(page, "n2", 1) != before
    Device.objects.filter(node__name="n2", minor=1).update(healthy=True, revision=revisions.next_revision())
    expect(page.locator("[data-figure=unhealthy]")).to_have_text("0")
    assert colour(page, "n2", 1) == before
    Node.objects.filter(name="n2").update(state="not-ready")
    expect(page.locator("[data-figure=free]")).to_have_text("6")
    Node.objects.filter(name="n2").update(state="ready")
    expect(page.locator("[data-figure=free]")).to_have_text("10")


@pytest.mark.parametrize(
    ("namespace", "want"),
    [
        pytest.param("research", "research/holder", id="my team"),
        pytest.param("other", "another team", id="another team"),
    ],
)
def test_the_card_names_holders_of_my_teams_only(sign_in, namespace, want):
    """VIEW-6 holder names are shown by namespace."""
    page = ready(sign_in(Role.VIEWER, namespace))
    minor = page.evaluate("window.gpuplaneFleet.columns.core.indexOf(100)")
    page.mouse.move(*cell(page, "n1", minor))
    card = page.locator("#device-card")
    expect(card).to_be_visible()
    expect(card).to_contain_text(f"n1 · GPU {minor}")
    expect(card).to_contain_text("in use")
    expect(card.locator("[data-holders]")).to_contain_text(want)
    page.mouse.move(5, 5)
    expect(card).to_be_hidden()


def test_a_click_opens_the_node(sign_in):
    page = ready(sign_in())
    page.mouse.click(*cell(page, "n2", 3))
    page.wait_for_url("**/nodes/n2/#gpu-3")
    expect(page.get_by_role("heading", name="n2")).to_be_visible()


def test_the_keyboard_does_what_the_mouse_does(sign_in):
    page = ready(sign_in())
    page.locator(".heat canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#fleet-speech")).to_contain_text("n1, gpu 1")
    expect(page.locator("#device-card")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#device-card")).to_be_hidden()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/n3/#gpu-3")


def test_what_is_shown_is_kept_in_the_address(sign_in):
    page = ready(sign_in())
    page.get_by_role("button", name="Utilisation").click()
    page.get_by_label("Filter by node, model or rack").fill("r2")
    page.wait_for_url("**/?by=utilisation&q=r2")
    assert page.evaluate("window.gpuplaneFleet.map.plan.order.length") == 4
    page.reload()
    ready(page)
    expect(page.get_by_role("button", name="Utilisation")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("window.gpuplaneFleet.map.plan.order.length") == 4
    page.get_by_label("Filter by node, model or rack").fill("nothing like it")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_a_broken_stream_is_said_and_comes_back(sign_in, page):
    """VIEW-1 a page that is not live says so."""
    sockets: list[WebSocketRoute] = []

    def through(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket("**/ws/fleet/", through)
    ready(sign_in())
    banner = page.locator("#stream-banner")
    expect(banner).to_be_hidden()
    sockets[0].close(code=1013)
    expect(banner).to_contain_text("last known state")
    expect(banner).to_be_hidden()
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    assert len(sockets) == 2


def test_a_gap_is_answered_with_the_full_picture(sign_in, page):
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

    page.route_web_socket("**/ws/fleet/", lossy)
    ready(sign_in())
    page.wait_for_selector('#fleet[data-frames="4"]')
    assert len(lost) == 1
    assert asked == ['{"ask":"full"}']


def test_a_session_that_ended_is_said(sign_in, page, context):
    ready(sign_in())
    context.clear_cookies()
    page.evaluate("window.gpuplaneFleet.stream.socket.close()")
    expect(page.locator("#stream-banner")).to_contain_text("signed out")
