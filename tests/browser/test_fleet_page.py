"""The fleet page: the heatmap shows the ledger, moves with it, and can be used by mouse and by keyboard."""

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from access.choices import Role
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.binder import release_now
from tests.browser.fleet import cell, colour, ready
from tests.extender import bound, filtered, pod_manifest
from tests.factories import NodeFactory


@pytest.fixture(scope="module", autouse=True)
def fleet(live_app, browser):
    """Three nodes of four GPUs in two racks; `research/holder` has two GPUs of n1."""
    for name, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
        NodeFactory(name=name, gpus=4, labels={"rack": rack})
    pod = pod_manifest("holder", resources={"nvidia.com/gpu": "2"})
    assert bound(pod, filtered(pod, ["n1"])) == ""


def held_by(pod):
    """Minors of its devices."""
    return sorted(AllocationDevice.objects.filter(allocation__pod_name=pod).values_list("minor", flat=True))


def test_the_heatmap_shows_the_ledger_and_moves_with_it(sign_in):
    """VIEW-1 every device is drawn, used ones unlike free ones, and a bind is seen within moments."""
    page = ready(sign_in())
    expect(page.locator("[data-figure=total]")).to_have_text("12")
    expect(page.locator("[data-figure=used]")).to_have_text("2")
    expect(page.locator("[data-fleet-size]")).to_have_text("3 nodes · 12 devices · 2 racks")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    used = held_by("holder")
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
    minor, _ = held_by("holder")
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


def test_the_fleet_is_taken_away_as_csv(sign_in):
    """VIEW-1 what the page shows, for a spreadsheet."""
    page = ready(sign_in())
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV").click()
    assert started.value.suggested_filename == "fleet.csv"


def test_the_keyboard_does_what_the_mouse_does(sign_in):
    page = ready(sign_in())
    page.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#fleet-speech")).to_contain_text("n1, gpu 1")
    expect(page.locator("#device-card")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#device-card")).to_be_hidden()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/n3/#gpu-3")
