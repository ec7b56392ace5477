"""The page of a node of 256 GPUs: tables in the place of what has the square of their number."""

import html
import json
import re

import pytest

from access.choices import Role
from tests.factories import NodeFactory, UserFactory

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]

BYTES_A_GPU = 3_000


def page_of(client, node):
    client.force_login(UserFactory(role=Role.ADMIN))
    return client.get(f"/nodes/{node.name}/").content.decode()


def test_a_node_of_256_gpus(client):
    """VIEW-1 matrix and wiring up to 32 GPUs, tables beyond: the page grows with the GPUs and not with their pairs."""
    text = page_of(client, NodeFactory(name="large", gpus=256))
    assert len(text) < 256 * BYTES_A_GPU + 40_000
    assert 'class="matrix"' not in text
    assert "<svg viewBox" not in text
    assert text.count("data-traffic=") == text.count("data-links=") == 256
    assert text.count('<td class="num">255</td>') == 256  # GPUs to which each has links
    assert "0–255" in text  # under the switch that is not known
    assert len(json.loads(html.unescape(re.search(r'data-gpus="([^"]*)"', text)[1]))) == 32
    assert "The first 32 of 256 GPUs" in text


def test_a_node_of_32_gpus_is_drawn(client):
    text = page_of(client, NodeFactory(name="small", gpus=32))
    assert 'class="matrix"' in text
    assert "NVLink, 18 links between every two" in text
    assert "The first 32 of" not in text
