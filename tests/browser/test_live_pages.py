"""Pages of a node, a device and the fleet's usage in a real browser: figures and charts move with what an agent
says.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from django.utils import timezone
from playwright.sync_api import APIResponse, Locator, Page, Route, WebSocketRoute, expect

from access.actors import SYSTEM
from access.choices import Role, TokenScope
from agent.protocol import Details, DeviceDetails, LinkDetails, ProcessDetails, Sample, encode
from allocations.models import Allocation
from allocations.scheduling.binder import release_now
from nodes.history import figures
from nodes.history.rollups import MINUTE
from nodes.history.totals import Totals
from nodes.inventory import parse_node
from nodes.models import Device, FleetRollup, Node, Rollup
from nodes.services import devices_health, inventory_put
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.servers.web import LiveApp


class Agent:
    """A node's agent that says what a test tells it to, by POST."""

    def __init__(self, app: LiveApp, node: Node) -> None:
        self.app = app
        self.node = node
        self.bearer = {"Authorization": f"Bearer {app.token(scope=TokenScope.AGENT, node=node.name)}"}
        self.uuids = [device.uuid for device in node.devices.order_by("minor")]
        self.seq = int(time.time() * 1000)

    def say(self, *utilisation: int | None, **more: list[int | None]) -> None:
        self.seq += 1
        columns: dict[str, Any] = {
            "utilisation_percent": list(utilisation),
            "power_watts": [None if one is None else 70 + 6 * one for one in utilisation],
            "nvlink_tx_bytes": [None if one is None else one * 10**9 for one in utilisation],
            **more,
        }
        self._post(Sample("b", self.seq, time.time(), devices=self.uuids, **columns))

    def tell(self, *, down: int = 0, process: str = "") -> None:
        self.seq += 1
        links = [LinkDetails(number, number >= down, "switch", 0, 0, 0) for number in range(18)]
        processes = [ProcessDetails(4711, process, 2**30)] if process else []
        details = [DeviceDetails(links, 0, 0, processes), *[DeviceDetails(links) for _ in self.uuids[1:]]]
        self._post(Details("b", self.seq, time.time(), details, self.uuids))

    def _post(self, frame: Sample | Details) -> None:
        path = f"{self.app.url}/api/v1/agents/{self.node.name}/samples/"
        answer = httpx.post(path, content=encode(frame), headers=self.bearer, timeout=30, verify=False)
        assert answer.status_code == 200, answer.content


@pytest.fixture(scope="module")
def agent(live_app: LiveApp, browser: object) -> Agent:
    """A node of two GPUs; research holds the first, and history has ten minutes of it."""
    node = NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="own")
    pod = pod_manifest("holder", claim="own")
    assert bound(pod, filtered(pod, ["n1"])) == ""
    now = timezone.now().replace(second=0, microsecond=0)
    uuid = Device.objects.get(node=node, minor=0).uuid
    for minute in range(1, 11):
        start = now - timedelta(minutes=minute + 5)
        column = figures.Column((60,), (10 * minute * 10,), (10 * minute,))
        body = figures.pack(figures.Figures((uuid,), {"utilisation_percent": column}))
        Rollup.objects.create(node=node, seconds=MINUTE, start=start, body=body)
        totals = Totals(gpus=2, held=1, measured=1, used=minute / 10, idle=1)
        FleetRollup.objects.create(seconds=MINUTE, start=start, groups=msgspec.to_builtins({"all": totals}))
    Device.objects.filter(node=node, minor=0).update(idle_since=now - timedelta(minutes=7))
    return Agent(live_app, node)


def _without_parts(route: Route) -> None:
    """Answer htmx with nothing new."""
    if "hx-request" in route.request.headers:
        route.fulfill(status=204)
    else:
        route.fallback()


def chart(page: Page) -> Locator:
    """The first chart of a page, whose attributes say how many points and seconds it shows, and its newest values."""
    return page.locator("[data-chart]").first


def seconds(page: Page) -> int:
    """The time that the first chart shows."""
    return int(chart(page).get_attribute("data-seconds") or 0)


def test_a_nodes_page_moves(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 figures in the table, a point on each chart, the links' state: as the agent says them."""
    agent.say(37, 5)
    page: Page = sign_in()
    page.goto("/nodes/n1/")
    row = page.locator("#gpu-0")
    expect(row.locator("[data-now=utilisation_percent]")).to_have_text("37 %")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    agent.say(81, 6)
    expect(row.locator("[data-now=utilisation_percent]")).to_have_text("81 %")
    expect(row.locator("[data-now=power_watts]")).to_have_text("556 W")
    expect(chart(page)).to_have_attribute("aria-label", "Utilisation: GPU 0 81 %, GPU 1 6 %")
    agent.say(82, None)
    expect(chart(page)).to_have_attribute("aria-label", "Utilisation: GPU 0 82 %, GPU 1 unknown")
    points = page.locator("[data-chart]").evaluate_all("(all) => all.map((one) => one.dataset.points)")
    assert len(points) == 6
    assert len(set(points)) == 1, "every chart has a point for every sample"
    expect(page.locator("[data-traffic]").last).to_have_text("–")
    agent.tell()
    expect(page.locator("[data-links]").first).to_have_text("18 up")
    agent.tell(down=2)
    expect(page.locator("[data-links]").first).to_have_text("2 of 18 down")
    expect(page.locator("[data-traffic]").first).to_contain_text("GiB/s")


def test_a_nodes_history_by_range(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 an hour by minutes, kept in the address; the drawing leads to a device."""
    page: Page = sign_in()
    page.goto("/nodes/n1/")
    page.get_by_role("button", name="1 hour", exact=True).click()
    page.wait_for_url("**/nodes/n1/?range=1h")
    expect(chart(page)).to_have_attribute("data-points", "10")
    expect(chart(page)).to_have_attribute("aria-label", "Utilisation: GPU 0 10 %, GPU 1 unknown")
    box = chart(page).locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.02, box["y"] + 20)  # the chart starts where measuring began
    expect(chart(page).locator(".u-legend .u-value").nth(1)).to_have_text("100 %")
    expect(page.locator("[data-history-note]")).to_have_text(re.compile(r"first figures of this range are 1\d min"))
    page.reload()
    expect(chart(page)).to_have_attribute("data-points", "10")
    page.locator(".wiring a").first.click()
    page.wait_for_url("**/devices/*/")
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU 0")


def test_a_devices_page_moves(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 VIEW-2 figures, processes and history of one GPU; CSV of what is shown."""
    agent.say(12, 5)
    agent.tell(process="trainer")
    page: Page = sign_in()
    page.goto(f"/devices/{Device.objects.get(node=agent.node, minor=0).pk}/")
    figure = page.locator("[data-now=utilisation_percent]")
    expect(figure).to_have_text("12 %")
    agent.say(99, 5)
    expect(figure).to_have_text("99 %")
    expect(chart(page)).to_have_attribute("aria-label", "Utilisation: Utilisation 99 %, Largest unknown")
    expect(page.get_by_text("trainer")).to_be_visible()
    page.get_by_role("button", name="6 hours").click()
    expect(chart(page)).to_have_attribute("data-points", "10")
    expect(chart(page)).to_have_attribute("aria-label", "Utilisation: Utilisation 10 %, Largest 10 %")
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV").click()
    assert started.value.suggested_filename == "n1-gpu-0-6h.csv"
    page.get_by_role("button", name="90 days").click()
    expect(chart(page)).to_have_attribute("data-points", re.compile("[1-9]"))


def test_events_come_to_a_devices_page(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 its story tells why the state at its head is another now."""
    page: Page = sign_in()
    device = Device.objects.get(node=agent.node, minor=1)
    page.goto(f"/devices/{device.pk}/")
    story = page.locator("#content .story").last
    expect(story).not_to_contain_text("Xid 79")
    for reason in ("Xid 79", ""):
        devices_health(node_name="n1", health={device.uuid: reason}, actor=SYSTEM, now=timezone.now())
        expect(story).to_contain_text("Xid 79" if reason else "is well again")


def test_an_agent_that_falls_silent_is_said(sign_in: Any, live_app: LiveApp, agent: Agent) -> None:
    """VIEW-1 a node of which nobody speaks is not shown as idle."""
    NodeFactory(name="quiet", gpus=1)
    page: Page = sign_in()
    page.goto("/nodes/quiet/")
    expect(page.locator(".live")).to_have_attribute("data-state", "silent")
    expect(page.locator("#gpu-0 [data-now=utilisation_percent]")).to_have_text("–")


def test_figures_of_an_agent_that_fell_silent_go(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 what was said last is not shown as what is so now."""
    agent.say(64, 5)
    page: Page = sign_in()
    page.goto(f"/devices/{Device.objects.get(node=agent.node, minor=0).pk}/")
    figure = page.locator("[data-now=utilisation_percent]")
    expect(figure).to_have_text("64 %")
    expect(figure).to_have_text("–", timeout=30_000)
    expect(page.locator(".live")).to_have_attribute("data-state", "silent")


def test_a_change_while_a_part_is_fetched_is_shown(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 the answer may have been written before the change, so the part is fetched once more."""
    agent.say(64, 5)
    page: Page = sign_in()
    kept: list[tuple[Route, APIResponse]] = []
    page.route("**/nodes/n1/devices/", lambda route: kept.append((route, route.fetch())), times=1)
    page.goto("/nodes/n1/")
    for _ in range(1500):  # once at first
        if kept:
            break
        page.wait_for_timeout(10)
    ((first, written_before),) = kept
    Device.objects.filter(node__name="n1").update(health_reason="a fan is loud")
    Node.objects.filter(name="n1").update(problem="it is looked at")
    expect(page.locator("#node-head")).to_contain_text("it is looked at")
    first.fulfill(response=written_before)
    expect(page.locator("#devices")).to_contain_text("a fan is loud")
    Device.objects.filter(node__name="n1").update(health_reason="")
    Node.objects.filter(name="n1").update(problem="")
    expect(page.locator("#node-head")).not_to_contain_text("it is looked at")


def test_a_part_that_is_read_is_not_taken_away(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 while the focus is in a table its refresh waits; without it it comes."""
    agent.say(64, 5)
    page: Page = sign_in()
    with page.expect_response("**/nodes/n1/devices/"):  # once at first
        page.goto("/nodes/n1/")
    page.wait_for_function("() => !document.querySelector('#node .htmx-request, #node .htmx-settling')")
    link = page.locator("#gpu-0 a").first
    link.focus()
    page.evaluate("window.before = document.querySelector('#devices')")
    with page.expect_response("**/nodes/n1/"):  # the head is fetched with every change, the devices are in use
        Node.objects.filter(name="n1").update(problem="it is looked at")
    expect(page.locator("#node-head")).to_contain_text("it is looked at")
    assert page.evaluate("document.querySelector('#devices') === window.before")
    expect(link).to_be_focused()
    page.evaluate("document.activeElement.blur()")
    page.wait_for_function("() => document.querySelector('#devices') !== window.before")
    Node.objects.filter(name="n1").update(problem="")
    expect(page.locator("#node-head")).not_to_contain_text("it is looked at")


def test_who_begins_to_read_while_a_part_is_fetched_keeps_it(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 an answer that comes late takes the focus from nobody; the part is fetched once they are done."""
    agent.say(64, 5)
    page: Page = sign_in()
    kept: list[tuple[Route, APIResponse]] = []
    with page.expect_response("**/nodes/n1/devices/"):  # once at first
        page.goto("/nodes/n1/")
    page.wait_for_function("() => !document.querySelector('#node .htmx-request, #node .htmx-settling')")
    page.route("**/nodes/n1/devices/", lambda route: kept.append((route, route.fetch())), times=1)
    Device.objects.filter(node__name="n1", minor=1).update(health_reason="a fan is loud")
    Node.objects.filter(name="n1").update(problem="it is looked at")
    for _ in range(1500):
        if kept:
            break
        page.wait_for_timeout(10)
    link = page.locator("#gpu-0 a").first
    link.focus()
    ((route, answer),) = kept
    with page.expect_response("**/nodes/n1/devices/"):
        route.fulfill(response=answer)
    expect(page.locator("#node-head")).to_contain_text("it is looked at")
    expect(link).to_be_focused()
    expect(page.locator("#devices")).not_to_contain_text("a fan is loud")
    page.evaluate("document.activeElement.blur()")
    expect(page.locator("#devices")).to_contain_text("a fan is loud")
    Device.objects.filter(node__name="n1", minor=1).update(health_reason="")
    Node.objects.filter(name="n1").update(problem="")
    expect(page.locator("#node-head")).not_to_contain_text("it is looked at")


def test_holders_come_and_go_on_a_nodes_page(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 a bind is seen on the page that is open, and its end; how long ago things were moves on."""
    agent.say(40, 5)
    page: Page = sign_in()
    page.goto("/nodes/n1/")
    row = page.locator("#gpu-1")
    expect(row).to_contain_text("free")
    pod = pod_manifest("comes-and-goes", resources={"nvidia.com/gpu": "1"})
    assert bound(pod, filtered(pod, ["n1"])) == ""
    expect(row).to_contain_text("research/comes-and-goes")
    when = page.locator("#story time").first
    expect(page.locator("#story")).to_contain_text("comes-and-goes is bound")
    expect(when).to_have_text(re.compile(r"^([7-9]|\d\d) s ago$"))
    (held,) = Allocation.objects.filter(pod_name="comes-and-goes")
    release_now(allocation_id=held.pk, reason="test", now=timezone.now(), actor="test")
    expect(row).not_to_contain_text("comes-and-goes")


@pytest.mark.parametrize("hours", [-1, 1])
def test_how_long_ago_is_by_the_servers_clock(sign_in: Any, agent: Agent, hours: int) -> None:
    """VIEW-1 a browser whose clock is wrong moves the server's words on, and does not replace them."""
    devices_health(node_name="n1", health={agent.uuids[0]: "Xid 79"}, actor=SYSTEM, now=timezone.now())
    devices_health(node_name="n1", health={agent.uuids[0]: ""}, actor=SYSTEM, now=timezone.now())
    page: Page = sign_in()
    page.add_init_script(f"{{ const right = Date.now; Date.now = () => right() + {hours * 3_600_000}; }}")
    page.route("**/*", _without_parts)  # which have the server's words
    for path in ("/nodes/n1/", f"/devices/{Device.objects.get(node=agent.node, minor=0).pk}/"):
        page.goto(path)
        when = page.locator("#content .story time").first
        written = when.inner_text()
        expect(when).not_to_have_text(written)
        expect(when).to_have_text(re.compile(r"^\d+ s ago$"))


def test_the_first_lease_comes_and_the_last_one_goes(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 the leases of a node that had none are seen on the page that is open, and their end."""
    NodeFactory(name="idle", gpus=1)
    page: Page = sign_in()
    page.goto("/nodes/idle/")
    expect(page.locator("#gpu-0")).to_contain_text("free")
    pod = pod_manifest("first", resources={"nvidia.com/gpu": "1"})
    assert bound(pod, filtered(pod, ["idle"])) == ""
    expect(page.locator("#gpu-0")).to_contain_text("research/first")
    expect(page.locator("#leases")).to_contain_text("research/first")
    (held,) = Allocation.objects.filter(pod_name="first")
    release_now(allocation_id=held.pk, reason="test", now=timezone.now(), actor="test")
    expect(page.locator("#gpu-0")).not_to_contain_text("research/first")
    expect(page.locator("#leases")).not_to_contain_text("research/first")


def test_a_gpu_comes_and_its_links_change(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 a GPU that is new in the node has a line in the charts, and the matrix follows the inventory."""
    node = NodeFactory(name="grows", gpus=2)
    page: Page = sign_in()
    page.goto("/nodes/grows/?range=1h")
    expect(page.locator(".matrix tbody tr").first).to_contain_text("18")
    inventory = {"minor": 0, "uuid": "", "model": "NVIDIA H100 80GB HBM3", "memory": "80Gi"}
    found = [inventory | {"minor": one.minor, "uuid": one.uuid, "model": one.model} for one in node.devices.all()]
    put = {"name": "grows", "devices": found, "links": [[0, 1, 17]]}
    inventory_put(shape=parse_node(put), actor=SYSTEM, now=timezone.now())
    expect(page.locator(".matrix tbody tr").first).to_contain_text("17")
    put["devices"] = [*found, inventory | {"minor": 2, "uuid": "GPU-grows-2"}]
    inventory_put(shape=parse_node(put), actor=SYSTEM, now=timezone.now())
    expect(chart(page)).to_have_attribute("aria-label", re.compile("GPU 2 unknown"))
    assert page.url.endswith("?range=1h")


def test_a_part_of_a_chart_is_looked_at(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 what is drawn with the mouse is shown, until a double click."""
    page: Page = sign_in()
    page.goto("/nodes/n1/?range=1h")
    expect(chart(page)).to_have_attribute("data-points", "10")
    whole = seconds(page)
    assert 600 < whole < 1800  # from where measuring began
    over = page.locator("[data-chart=utilisation_percent] .u-over")
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
    page.mouse.up()
    assert seconds(page) == pytest.approx(whole / 4, rel=0.1)
    over.dblclick()
    assert seconds(page) == whole


def test_a_broken_stream_comes_back(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 the page says that it is not live, connects again by itself, and goes on."""
    agent.say(21, 5)
    page: Page = sign_in()
    sockets: list[WebSocketRoute] = []

    def through(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket(re.compile("/ws/nodes/"), through)
    page.goto("/nodes/n1/")
    cell = page.locator("#gpu-0 [data-now=utilisation_percent]")
    expect(cell).to_have_text("21 %")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")  # a socket closed before it is open complains
    sockets[0].close(code=1013)
    expect(page.locator(".live")).to_have_attribute("data-state", "stale")
    agent.say(22, 5)
    expect(cell).to_have_text("22 %")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")


def test_usage(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 allocated against used over time, by range and group; who holds GPUs and leaves them idle."""
    page: Page = sign_in(Role.VIEWER, "research")
    page.goto("/usage/?range=1h")
    expect(chart(page)).to_have_attribute("data-points", "10")
    expect(page.locator("[data-total='held/gpus']")).to_have_text("50")
    expect(page.locator("[data-total='used/measured']")).to_have_text("10")
    expect(page.locator("#idle")).to_contain_text("research/holder")
    page.get_by_role("button", name="7 days").click()
    page.wait_for_url("**/usage/?range=7d")
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV", exact=True).click()
    assert started.value.suggested_filename == "fleet-all-7d.csv"
    with page.expect_download() as devices:
        page.get_by_role("link", name="Devices as CSV").click()
    assert devices.value.suggested_filename == "fleet.csv"


def test_dark_mode_redraws_the_charts(sign_in: Any, agent: Agent) -> None:
    """VIEW-1 legible on dark ground, values kept."""
    agent.say(50, 5)
    page: Page = sign_in()
    page.goto("/nodes/n1/?range=1h")
    expect(chart(page)).to_have_attribute("data-points", "10")
    marker = chart(page).locator(".u-legend .u-series").nth(1).locator(".u-marker")
    expect(marker).to_have_css("border-top-color", "rgb(0, 114, 178)")
    page.emulate_media(color_scheme="dark")
    expect(marker).to_have_css("border-top-color", "rgb(86, 180, 233)")
    expect(chart(page)).to_have_attribute("data-points", "10")
