"""The other pages in a real browser: sign-in, theme, writes with their confirmation, live refreshes, phones."""

import pytest
from django.utils import timezone
from knox.models import AuthToken
from playwright.sync_api import Page, expect

from access.choices import Role
from allocations.models import Allocation
from allocations.scheduling.binder import release_now
from claims.models import GpuClaim
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory

PAGES = [
    "/",
    "/nodes/",
    "/nodes/n1/",
    "/claims/",
    "/claims/new/",
    "/claims/research/pair/",
    "/allocations/",
    "/pending/",
    "/events/",
    "/simulate/",
]


def place(name: str, *, claim: str = "pair", namespace: str = "research") -> Allocation:
    """A pod that holds what its claim asks."""
    pod = pod_manifest(name, claim=claim, namespace=namespace)
    assert bound(pod, filtered(pod, ["n1"])) == ""
    return Allocation.objects.get(pod_name=name)


@pytest.fixture(scope="module", autouse=True)
def fleet(live_app, browser):
    """A node of eight GPUs; research holds two by its claim `pair`, secret one by `own`."""
    NodeFactory(name="n1", gpus=8)
    GpuClaimFactory(name="pair", spec={"devices": {"count": 2, "policy": "contiguous"}})
    GpuClaimFactory(namespace="secret", name="own")
    place("first")
    place("hidden", claim="own", namespace="secret")


def test_sign_in_refuses_and_admits(page, live_app, complaints):
    """VIEW-6 a wrong password is told, a right one leads to the page asked for."""
    from tests.factories import PASSWORD, UserFactory

    user = UserFactory(role=Role.VIEWER, namespaces=["research"])
    page.goto("/claims/research/pair/")
    page.wait_for_url("**/sign-in/?next=/claims/research/pair/")
    page.get_by_label("User name").fill(user.username)
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("do not match")
    complaints.clear()  # Chromium logs the 401
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/claims/research/pair/")
    page.get_by_role("button", name=f"Account of {user.username}").click()
    expect(page.get_by_text("viewer", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in/")


def test_the_dark_theme_is_chosen_and_kept(sign_in):
    page = sign_in()

    def darkness() -> float:
        painted: float = page.evaluate("""() => {
            const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
            return r + g + b;
        }""")
        return painted

    assert darkness() > 600
    page.get_by_role("button", name="Account of").click()
    with page.expect_response("**/theme/"):
        page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    assert darkness() < 120
    page.goto("/nodes/")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    assert darkness() < 120


def test_the_system_theme_is_followed(browser, live_app):
    context = browser.new_context(base_url=live_app.url, color_scheme="dark")
    page = context.new_page()
    page.goto("/sign-in/")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "light")
    context.close()


def test_a_nodes_page_shows_devices_links_and_holders(sign_in):
    """VIEW-1 drill-down: devices with holders, the link matrix with its island."""
    page = sign_in(Role.VIEWER, "research")
    page.goto("/nodes/")
    page.get_by_role("link", name="n1").click()
    rows = page.locator("#devices tbody tr")
    expect(rows).to_have_count(8)
    expect(page.locator("#devices")).to_contain_text("research/first")
    expect(page.locator("#devices")).to_contain_text("another team")
    expect(page.locator("#devices")).not_to_contain_text("hidden")
    expect(page.locator(".matrix tbody tr")).to_have_count(8)
    expect(page.locator(".matrix td.nv-4")).to_have_count(56)


def test_a_search_keeps_what_is_typed(sign_in):
    """VIEW-1 the table follows the words, which stay with the caret; the address and later refreshes go with them."""
    page = sign_in(Role.VIEWER, "research")
    page.goto("/nodes/?sort=state")
    field = page.get_by_label("Search by name")
    field.press_sequentially("nosuch")
    expect(page.get_by_text("No node matches")).to_be_visible()
    expect(page.get_by_text("0 nodes")).to_be_visible()
    expect(page.get_by_role("link", name="Clear")).to_have_count(1)
    page.keyboard.type("-node")
    expect(field).to_be_focused()
    expect(field).to_have_value("nosuch-node")
    page.wait_for_url("**/nodes/?q=nosuch-node&sort=state")
    field.fill("n")
    expect(page.get_by_role("link", name="n1")).to_be_visible()
    expect(page.locator("#rows")).to_have_attribute("hx-get", "/nodes/?q=n&sort=state")
    with page.expect_request(lambda request: request.url.endswith("/nodes/?q=n&sort=state")) as asked:
        expect(field).to_be_focused()
    assert asked.value.headers.get("hx-request") == "true", "the refresh asks for what is shown"
    page.reload()
    expect(page.get_by_label("Search by name")).to_have_value("n")
    field.fill("")
    page.wait_for_url("**/nodes/?sort=state")


def test_what_a_link_leads_to_is_seen(sign_in):
    """VIEW-1 the row of a GPU that the map leads to is marked, and under no bar."""
    page = sign_in()
    page.set_viewport_size({"width": 390, "height": 500})
    page.goto("/nodes/n1/#gpu-5")
    assert page.evaluate("getComputedStyle(document.querySelector('#gpu-5')).scrollMarginTop") == "72px"
    painted = "(row) => getComputedStyle(document.querySelector(`${row} td`)).backgroundColor"
    with page.expect_response("**/nodes/n1/devices/"):  # once at first
        page.reload()
        assert page.evaluate(painted, "#gpu-5") != page.evaluate(painted, "#gpu-4")
    expect(page.locator("#devices.htmx-request, #devices .htmx-settling, #devices.htmx-settling")).to_have_count(0)
    assert page.evaluate(painted, "#gpu-5") != page.evaluate(painted, "#gpu-4"), "marked after a refresh, too"


def test_numbers_of_links_can_be_read(sign_in):
    """VIEW-1 text of the link matrix against its ground: 4.5 to 1 (WCAG 2.2, 1.4.3), in both themes."""
    page = sign_in()
    page.goto("/nodes/n1/")
    for theme in ("light", "dark"):
        page.evaluate("(theme) => { document.documentElement.dataset.bsTheme = theme; }", theme)
        ratios = page.evaluate("""() => {
            const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            const parts = (colour) => colour.match(/\\d+/g).slice(0, 3).map((part) => linear(part / 255));
            const light = (colour) =>
                parts(colour).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
            const cell = document.querySelector(".matrix td.nv-4");
            return [1, 2, 3, 4].map((lanes) => {
                cell.className = `nv nv-${lanes}`;
                const { color, backgroundColor } = getComputedStyle(cell);
                const [low, high] = [light(color), light(backgroundColor)].sort((one, other) => one - other);
                return (high + 0.05) / (low + 0.05);
            });
        }""")
        assert min(ratios) >= 4.5, (theme, ratios)


def test_a_claims_page_shows_its_history_as_it_happens(sign_in):
    """VIEW-2, VIEW-3 timeline and explanation move without a reload."""
    page = sign_in(Role.VIEWER, "research")
    page.goto("/claims/research/pair/")
    timeline = page.locator(".story")
    expect(timeline).to_contain_text("research/first is bound to n1")
    place("second")
    expect(timeline).to_contain_text("research/second is bound to n1")
    expect(page.get_by_role("link", name="second").first).to_be_visible()
    filler = place("filler")
    assert filtered(pod_manifest("third", claim="pair"), ["n1"]) is None
    expect(page.locator(".why.bad")).to_contain_text("third")
    expect(page.locator(".why.bad")).to_contain_text("fewer than 2 whole gpu devices free")
    release_now(allocation_id=filler.pk, reason="test", now=timezone.now(), actor="test")


def test_a_release_asks_first_and_returns_the_devices(sign_in):
    """VIEW-2 a write action, with its confirmation."""
    allocation = place("released")
    page = sign_in(Role.OPERATOR, "research")
    page.goto(f"/allocations/{allocation.pk}/")
    page.get_by_role("button", name="Release").click()
    page.get_by_role("button", name="Cancel").click()
    allocation.refresh_from_db()
    assert allocation.state == "bound"
    page.get_by_role("button", name="Release").click()
    page.locator("#ask-yes").click()
    expect(page.locator(".notes")).to_contain_text("The devices are returned")
    allocation.refresh_from_db()
    assert allocation.state == "released"


def test_the_heading_moves_with_the_page(sign_in):
    """VIEW-1, VIEW-2 state and buttons above a page that refreshes itself are as new as the rest of it."""
    allocation = place("heading")
    page = sign_in(Role.OPERATOR, "research")
    page.goto(f"/allocations/{allocation.pk}/")
    actions = page.locator("#page-actions")
    expect(actions).to_contain_text("bound")
    release_now(allocation_id=allocation.pk, reason="test", now=timezone.now(), actor="test")
    expect(actions).to_contain_text("released")
    expect(page.get_by_role("button", name="Release")).to_have_count(0)


def test_a_question_outlives_a_refresh(sign_in):
    """VIEW-2 the form that asks is sent by its answer, however long that takes."""
    page = sign_in(Role.OPERATOR, "research")
    GpuClaimFactory(name="asked-about", namespace="research")
    page.goto("/claims/research/asked-about/")
    page.get_by_role("button", name="Delete").click()
    page.evaluate("window.before = document.querySelector('#page-heading')")
    page.wait_for_function("() => document.querySelector('#page-heading') !== window.before")
    page.locator("#ask-yes").click()
    page.wait_for_url("**/claims/")
    assert not GpuClaim.objects.filter(name="asked-about").exists()


def test_two_clicks_send_a_form_once(sign_in):
    """VIEW-6 a second token, which nobody has seen, would be left."""
    page = sign_in(Role.OPERATOR, "research")
    page.goto("/tokens/")
    before = AuthToken.objects.count()
    sent = []

    def keep(route):
        if route.request.method == "POST":
            sent.append(route)
        else:
            route.fallback()

    page.route("**/tokens/", keep)
    stopped = page.evaluate("""() => {
        const stopped = [];
        window.addEventListener("submit", (event) => stopped.push(event.defaultPrevented));
        const form = document.querySelector("#days").form;
        form.requestSubmit();
        form.requestSubmit();
        return stopped;
    }""")
    for _ in range(1500):
        if sent:
            break
        page.wait_for_timeout(10)
    for route in sent:
        route.fallback()
    expect(page.locator("#made")).to_be_visible()
    assert stopped == [False, True]
    assert (len(sent), AuthToken.objects.count()) == (1, before + 1)


def test_a_claim_is_made_and_deleted(sign_in):
    """VIEW-2 claims are written by those allowed to."""
    page = sign_in(Role.OPERATOR, "research")
    page.goto("/claims/")
    page.get_by_role("link", name="New claim").click()
    page.get_by_label("Manifest").fill("metadata: {name: made, namespace: research}\nspec: {devices: {count: 1}}")
    page.get_by_role("button", name="Create claim").click()
    page.wait_for_url("**/claims/research/made/")
    page.get_by_role("button", name="Delete").click()
    page.locator("#ask-yes").click()
    page.wait_for_url("**/claims/")
    assert not GpuClaim.objects.filter(name="made").exists()


def test_a_viewer_sees_no_write_buttons_and_is_refused(sign_in, complaints):
    """VIEW-6 the buttons are gone, and the server refuses what somebody sends all the same."""
    page = sign_in(Role.VIEWER, "research")
    allocation = Allocation.objects.get(pod_name="first")
    for path in ("/claims/", "/claims/research/pair/", f"/allocations/{allocation.pk}/"):
        page.goto(path)
        for name in ("New claim", "Delete", "Release"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
            expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    status = page.evaluate(
        """async (path) => {
            const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
            return (await fetch(path, { method: "POST", headers: { "X-CSRFToken": token } })).status;
        }""",
        f"/allocations/{allocation.pk}/release/",
    )
    assert status == 403
    allocation.refresh_from_db()
    assert allocation.state == "bound"
    complaints.clear()  # Chromium logs the 403


def test_another_teams_claim_does_not_exist(sign_in, complaints):
    """VIEW-6 what I may not see is not there."""
    page = sign_in(Role.OPERATOR, "research")
    answer = page.goto("/claims/secret/own/")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_text("There is nothing here")).to_be_visible()
    complaints.clear()  # Chromium logs the 404


def test_what_if_runs_the_example(sign_in):
    """VIEW-4 paste, run, read."""
    page = sign_in(Role.VIEWER)
    page.goto("/simulate/")
    page.get_by_label("Scenario").fill("nodes: []")
    page.get_by_role("button", name="Example").click()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("row", name="research/train-2")).to_contain_text("refused")


@pytest.mark.parametrize(
    ("width", "height"), [pytest.param(1440, 900, id="laptop"), pytest.param(390, 844, id="phone")]
)
def test_no_page_is_wider_than_the_screen(sign_in, width, height):
    page: Page = sign_in()
    page.set_viewport_size({"width": width, "height": height})
    for path in PAGES:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_the_menu_opens_on_a_phone(sign_in):
    page = sign_in()
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Events").click()
    page.wait_for_url("**/events/")
