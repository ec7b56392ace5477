"""The fleet page's views: what is coloured, grouped, filtered, zoomed and moved, kept in the address; by a make-believe
fleet.
"""

import re

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from access.choices import Role
from access.models import Team, TeamNamespace
from tests.browser.fleet import (
    cell,
    cell_size,
    colour,
    expect_columns,
    expect_heads,
    expect_shown,
    heads,
    painted,
    ready,
    shown,
)
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.fleet_feed import Feed

NODES = 64
LABELS = "document.querySelector('[data-labels]').toDataURL()"


@pytest.fixture
def feed(page):
    """512 GPUs in eight racks, whose utilisation moves when the test says so."""
    made = Feed(NODES)
    made.attach(page)
    return made


@pytest.fixture
def fleet_page(feed, sign_in) -> Page:
    """The page of that fleet."""
    return ready(sign_in())


def filter_by(page: Page, words: str) -> None:
    page.get_by_label("Filter by words").fill(words)


def test_the_heatmap_moves_with_the_measurements(feed, fleet_page):
    """VIEW-1 values change on the screen with every frame, and only the measure looked at is sent."""
    fleet_page.get_by_role("button", name="Utilisation").click()
    feed.tick(utilisation=np.full(feed.rows, 10, np.uint8))
    fleet_page.wait_for_selector('#fleet[data-frames="3"]')  # the first, the measure asked for, the tick
    low = colour(fleet_page, "gpu-00001", 2)
    feed.tick(utilisation=np.full(feed.rows, 90, np.uint8))
    fleet_page.wait_for_selector('#fleet[data-frames="4"]')
    high = colour(fleet_page, "gpu-00001", 2)
    assert sum(low[:3]) > sum(high[:3]) + 100, "more is darker on a light page"
    assert feed.asked == ['{"ask":"columns","columns":["utilisation"]}']


@pytest.mark.parametrize(
    ("measure", "column"),
    [
        pytest.param("Memory", "memory_in_use", id="memory"),
        pytest.param("Temperature", "temperature", id="temperature"),
        pytest.param("Power", "power", id="power"),
        pytest.param("NVLink", "nvlink", id="NVLink traffic"),
        pytest.param("Health", "flags", id="health"),
    ],
)
def test_each_measure_colours_the_map(feed, fleet_page, measure, column):
    """VIEW-1 every measure can be looked at, and the legend says its range."""
    fleet_page.get_by_role("button", name=measure).click()
    expect(fleet_page.get_by_role("button", name=measure)).to_have_attribute("aria-pressed", "true")
    fleet_page.wait_for_selector(f'#fleet[data-frames="{1 if column == "flags" else 2}"]')
    values = np.full(feed.rows, 10, np.uint8) if column != "flags" else np.full(feed.rows, 19, np.uint8)
    feed.tick(**{column: values})
    fleet_page.wait_for_selector(f'#fleet[data-frames="{2 if column == "flags" else 3}"]')
    one = colour(fleet_page, "gpu-00001", 2)
    values[10] = 18 if column == "flags" else 110
    feed.tick(**{column: values})
    fleet_page.wait_for_selector(f'#fleet[data-frames="{3 if column == "flags" else 4}"]')
    assert colour(fleet_page, "gpu-00001", 2) != one
    assert colour(fleet_page, "gpu-00001", 3) == one
    legend = fleet_page.locator(".heat-legend")
    expect(legend.get_by_text("taken outside").filter(visible=True)).to_have_count(1)
    expect(legend.get_by_text("not measured")).to_be_visible(visible=column != "flags")


@pytest.mark.parametrize(
    ("grouping", "want"),
    [
        pytest.param("rack", {f"r{number:03d}": 64 for number in range(8)}, id="rack"),
        pytest.param("pool", {"inference": 192, "research": 128, "training": 192}, id="pool"),
        pytest.param("model", {"A100": 128, "H100": 128, "H200-NVL": 128, "L40S": 128}, id="model"),
        pytest.param("node", {"": 512}, id="node: no groups"),
    ],
)
def test_devices_stand_together_by(fleet_page, grouping, want):
    """VIEW-1 grouping puts every device in one group, and the address says which grouping."""
    fleet_page.get_by_label("Group by").select_option(grouping)
    assert heads(fleet_page) == want
    assert shown(fleet_page) == 512
    words = [painted(fleet_page).evaluate(LABELS)]
    fleet_page.evaluate("document.dispatchEvent(new Event('gpuplane:theme'))")  # everything is drawn anew
    words.append(painted(fleet_page).evaluate(LABELS))
    assert words[0] == words[1], "the words are those of this grouping"
    if grouping != "rack":
        fleet_page.wait_for_url(f"**/?group={grouping}")


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param("gpu-00001", 8, id="a plain word"),
        pytest.param("R001 gpu-0001", 48, id="words must all fit, capitals or not"),
        pytest.param("model:h100 rack:r004", 64, id="keys"),
        pytest.param("model:h100,l40s", 256, id="a comma means or"),
        pytest.param("-model:h100 -pool:research", 256, id="a minus turns it round"),
        pytest.param("node:0000", 80, id="part of a name"),
        pytest.param("state:unhealthy", 6, id="a state"),
        pytest.param("state:node-not-ready,vanished", 6, id="states of several words"),
        pytest.param("state:trouble", 12, id="a kind of states"),
        pytest.param("nothing:like", 0, id="an unknown key is a word"),
        pytest.param("state:constructor,__proto__", 0, id="a state that is none"),
    ],
)
def test_the_filter_finds(feed, fleet_page, words, want):
    """VIEW-1 words and keys."""
    filter_by(fleet_page, words)
    if "state:" in words:
        fleet_page.wait_for_selector('#fleet[data-frames="1"]')
    assert shown(fleet_page) == want
    if want:
        expect(fleet_page.locator("[data-fleet-size]")).to_contain_text(f"{want} shown")
    else:
        expect(fleet_page.get_by_text("Nothing matches")).to_be_visible()


def test_a_state_that_changes_moves_a_device_into_the_filter(feed, fleet_page):
    """VIEW-1 a filter by state follows what happens, and has the columns that it needs."""
    fleet_page.get_by_role("button", name="Power").click()
    fleet_page.get_by_label("State", exact=True).select_option("free")
    fleet_page.wait_for_selector('#fleet[data-frames="3"]')
    expect_columns(fleet_page, "core", "memory", "power")
    before = shown(fleet_page)
    core = feed.columns[0].copy()
    core[core == 0] = 100
    feed.tick(core=core)
    fleet_page.wait_for_selector('#fleet[data-frames="4"]')
    assert 0 < before < 512
    assert shown(fleet_page) == 0


def test_zoom_by_keys_buttons_and_wheel(fleet_page):
    """VIEW-1 nearer and further, what is under the pointer stays under it, and zero shows everything."""
    before = cell_size(fleet_page)
    fleet_page.keyboard.press("+")
    fleet_page.keyboard.press("+")
    nearer = cell_size(fleet_page)
    assert nearer == pytest.approx(before * 1.3**2)
    fleet_page.get_by_role("button", name="Zoom out").click()
    assert cell_size(fleet_page) == pytest.approx(before * 1.3)
    fleet_page.keyboard.press("0")
    assert cell_size(fleet_page) == before
    assert shown(fleet_page) == 512

    fleet_page.mouse.move(*cell(fleet_page, "gpu-00035", 5))
    fleet_page.keyboard.down("Control")
    fleet_page.mouse.wheel(0, -200)
    painted(fleet_page)
    fleet_page.mouse.wheel(0, -200)
    fleet_page.keyboard.up("Control")
    fleet_page.wait_for_url(re.compile(r"zoom="))
    x, y = cell(fleet_page, "gpu-00035", 5)
    fleet_page.mouse.move(x, y)
    expect(fleet_page.locator("#device-card")).to_contain_text("gpu-00035 · GPU 5")
    assert cell_size(fleet_page) > before * 1.5
    assert cell_size(fleet_page) < before * 8


def test_a_zoomed_map_is_dragged_and_a_drag_opens_nothing(fleet_page):
    fleet_page.get_by_role("application").focus()
    for _ in range(6):
        fleet_page.keyboard.press("+")
    x, y = cell(fleet_page, "gpu-00000", 0)
    box = fleet_page.locator(".heat").bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    fleet_page.mouse.move(*middle)
    fleet_page.mouse.down()
    fleet_page.mouse.move(middle[0] - 60, middle[1] - 30, steps=4)
    fleet_page.mouse.up()
    moved = cell(fleet_page, "gpu-00000", 0)
    assert (round(moved[0] - x), round(moved[1] - y)) == (-60, -30)
    assert fleet_page.url.partition("?")[0].endswith("/")


def test_the_address_holds_the_view(fleet_page):
    """VIEW-1 measure, grouping, filter, zoom and place come back with the address, by a reload and from a
    node's page.
    """
    fleet_page.get_by_role("button", name="Temperature").click()
    fleet_page.get_by_label("Group by").select_option("pool")
    fleet_page.get_by_label("State", exact=True).select_option("used")
    filter_by(fleet_page, "-model:l40s")
    fleet_page.get_by_role("application").focus()
    for _ in range(5):
        fleet_page.keyboard.press("+")
    address = re.compile(r"\?by=temperature&group=pool&state=used&q=-model:l40s&zoom=3\.713&at=")
    fleet_page.wait_for_url(address)
    zoomed = fleet_page.url
    fleet_page.evaluate("document.querySelector('.heat').scrollTo(120, 90)")
    fleet_page.wait_for_url(lambda url: url != zoomed and bool(address.search(url)))
    before = view_of(fleet_page)
    fleet_page.reload()
    assert view_of(ready(fleet_page)) == before
    fleet_page.goto("/nodes/")
    fleet_page.go_back()
    assert view_of(ready(fleet_page)) == before
    expect(fleet_page.get_by_role("button", name="Temperature")).to_have_attribute("aria-pressed", "true")
    expect(fleet_page.get_by_label("Filter by words")).to_have_value("-model:l40s")


def view_of(page: Page) -> tuple[object, ...]:
    """What somebody sees: measure, groups, size and place."""
    place = page.locator(".heat").evaluate("(heat) => [heat.scrollLeft, heat.scrollTop]")
    return page.url, heads(page), round(cell_size(page), 1), [round(axis / 3) for axis in place]


@pytest.mark.parametrize(
    "search",
    [
        pytest.param("?by=nonsense&group=__proto__&zoom=NaN&at=x", id="words that are none"),
        pytest.param("?by=constructor&zoom=1e9&at=7,-3", id="numbers out of bounds"),
        pytest.param("?type=quantum&state=%01&q=%22%3E%3Cb%3E", id="hostile text"),
        pytest.param("?state=__proto__&type=constructor", id="a state that every object has"),
    ],
)
def test_an_address_that_makes_no_sense_shows_the_fleet(fleet_page, search):
    fleet_page.goto(f"/{search}")
    ready(fleet_page)
    expect(fleet_page.locator("[data-figure=total]")).to_have_text("512")
    expect(fleet_page.locator("#fleet-type")).to_have_value("gpu")
    expect(fleet_page.get_by_label("State", exact=True)).to_have_value("")


def test_slash_leads_to_the_filter_and_escape_empties_it(fleet_page):
    fleet_page.keyboard.press("/")
    filter_field = fleet_page.get_by_label("Filter by words")
    expect(filter_field).to_be_focused()
    fleet_page.keyboard.type("a100 0+-")
    expect(filter_field).to_have_value("a100 0+-")
    fleet_page.keyboard.press("Escape")
    expect(filter_field).to_have_value("")
    assert shown(fleet_page) == 512
    fleet_page.keyboard.press("Escape")
    expect(filter_field).not_to_be_focused()


def test_the_dark_theme_paints_anew(fleet_page):
    """VIEW-1 more is brighter on a dark page; the canvas follows the theme at once."""
    light = colour(fleet_page, "gpu-00001", 0)
    fleet_page.emulate_media(color_scheme="dark")
    expect(fleet_page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    dark = colour(fleet_page, "gpu-00001", 0)
    assert light != dark
    ground = fleet_page.evaluate(
        "[...document.querySelector('[data-cells]').getContext('2d').getImageData(1, 1, 1, 1).data]"
    )
    assert sum(ground[:3]) < 120


@pytest.mark.parametrize("out_of_sight", ["width", "height"])
def test_a_map_without_room_is_painted_once_it_has_room(fleet_page, out_of_sight):
    """VIEW-1 a view of no width or height is not painted; when it has room again, it shows what is so by then."""
    light = colour(fleet_page, "gpu-00001", 0)
    fleet_page.evaluate(f"document.querySelector('.heat').style.{out_of_sight} = '0'")
    fleet_page.emulate_media(color_scheme="dark")
    expect(fleet_page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    fleet_page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    fleet_page.evaluate(f"document.querySelector('.heat').style.{out_of_sight} = ''")
    fleet_page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert colour(fleet_page, "gpu-00001", 0) != light


def test_on_a_phone_a_tap_shows_and_a_second_opens(browser, live_app, sign_in, page):
    """VIEW-1 no finger can hover."""
    state = sign_in().context.storage_state()
    context = browser.new_context(
        base_url=live_app.url, viewport={"width": 390, "height": 844}, has_touch=True, storage_state=state
    )
    phone = context.new_page()
    Feed(NODES).attach(phone)
    phone.goto("/")
    ready(phone)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    phone.locator(".heat").scroll_into_view_if_needed()
    at = cell(phone, "gpu-00003", 1)
    phone.touchscreen.tap(*at)
    expect(phone.locator("#device-card")).to_contain_text("gpu-00003 · GPU 1")
    phone.touchscreen.tap(*at)
    phone.wait_for_url("**/nodes/gpu-00003/**")
    context.close()


def test_devices_stand_together_by_their_holders_teams(sign_in):
    """VIEW-1 VIEW-6 by team, and found by team; what others hold is told without their name."""
    NodeFactory(name="n1", gpus=4)
    for name, namespace in (("mine", "vision"), ("theirs", "secret")):
        pod = pod_manifest(name, namespace=namespace, resources={"nvidia.com/gpu": "1"})
        assert bound(pod, filtered(pod, ["n1"])) == ""
    page = sign_in(Role.VIEWER, "vision")
    (team,) = Team.objects.filter(pk__in=TeamNamespace.objects.filter(namespace="vision").values("team"))
    ready(page)
    page.get_by_label("Group by").select_option("team")
    expect_columns(page, "core", "memory")
    expect_heads(page, {team.name: 1, "another team": 1, "free": 2})
    filter_by(page, f"team:{team.name}")
    assert heads(page) == {team.name: 1}


def test_devices_are_found_by_their_holders(sign_in):
    """VIEW-1 VIEW-6 by pod, claim and namespace; what others hold is found by none of their names.

    A word that only begins as a key does is a word.
    """
    NodeFactory(name="pod2", gpus=4)
    GpuClaimFactory(name="eyes", namespace="vision")
    for pod in (
        pod_manifest("train-0", namespace="vision", claim="eyes"),
        pod_manifest("eval-0", namespace="vision", resources={"nvidia.com/gpu": "1"}),
        pod_manifest("train-9", namespace="secret", resources={"nvidia.com/gpu": "1"}),
    ):
        assert bound(pod, filtered(pod, ["pod2"])) == ""
    page = sign_in(Role.VIEWER, "vision")
    ready(page)
    for words, count in {
        "pod:train": 1,
        "pod:vision/": 2,
        "-pod:train": 3,
        "claim:eyes": 1,
        "namespace:vision": 2,
        "namespace:secret": 0,
        "pod:train,eval namespace:vis": 2,
    }.items():
        page.get_by_label("Filter by words").fill(f"pod2 {words}")
        expect_shown(page, count)


def test_an_answer_that_comes_late_shows_nothing_old(sign_in):
    """VIEW-1 the filter was taken away and given again meanwhile: what was asked first is not shown last."""
    (device,) = NodeFactory(name="n3", gpus=1).devices.all()
    page = sign_in()
    asked: list[Route] = []

    def kept(route: Route) -> None:
        asked.append(route)

    page.route("**/fleet/holders/**", kept)
    ready(page)
    for words in ("node:n3 pod:late", "node:n3", "node:n3 pod:late"):
        filter_by(page, words)
    while len(asked) < 2:
        page.wait_for_timeout(10)
    asked[1].fulfill(json={"names": {"vision/late-1": [device.pk]}, "others": []})
    expect_shown(page, 1)
    with page.expect_response("**/fleet/holders/**"):
        asked[0].fulfill(json={"names": {}, "others": []})
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert sum(heads(page).values()) == 1
