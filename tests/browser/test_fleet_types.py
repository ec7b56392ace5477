"""A fleet of several types of device on the fleet page: one at a time, or those that the filter names."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from nodes.live.fleet_rows import Layout, LayoutDevice, LayoutNode
from tests.browser.fleet import ready, shown
from tests.fleet_feed import Feed, columns_for

GPUS, CARDS = 32, 8
"""Four nodes have so many."""


def with_network_cards(node: LayoutNode) -> LayoutNode:
    """Two of them beside its GPUs."""
    first = node.devices[-1].id * 1000
    cards = tuple(
        LayoutDevice(first + minor, "rdma", minor, f"RDMA-{first}-{minor}", "ConnectX-7", 0, 0) for minor in range(2)
    )
    return replace(node, devices=(*node.devices, *cards))


@pytest.fixture
def feed(page):
    """Four nodes of eight GPUs and two network cards."""
    made = Feed(4)
    made.layout = Layout(tuple(with_network_cards(node) for node in made.layout.nodes))
    made.rows = made.layout.device_count
    made.columns = columns_for(made.rows)
    made.attach(page)
    return made


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param("", GPUS, id="the type chosen"),
        pytest.param("type:rdma", CARDS, id="the type named"),
        pytest.param("type:rdma,gpu", GPUS + CARDS, id="several types"),
        pytest.param("-type:gpu", CARDS, id="any other type"),
    ],
)
def test_the_filter_names_types(feed, sign_in, words, want):
    """VIEW-1 `type:` finds what it names, whatever the choice beside it says."""
    page = ready(sign_in())
    page.get_by_label("Filter by words").fill(words)
    assert shown(page) == want
    choice = page.get_by_label("Device type")
    expect(choice).to_be_disabled() if words else expect(choice).to_have_value("gpu")
