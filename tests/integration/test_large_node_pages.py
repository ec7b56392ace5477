"""The page of a node of 256 GPUs: tables in the place of what has the square of their number."""

import html
import json
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

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
    (charted,) = re.findall(r'data-gpus="([^"]*)"', text)
    assert len(json.loads(html.unescape(charted))) == 32
    assert "The first 32 of 256 GPUs" in text


def test_a_node_of_32_gpus_is_drawn(client):
    text = page_of(client, NodeFactory(name="small", gpus=32))
    assert 'class="matrix"' in text
    assert "NVLink, 18 links between every two" in text
    assert "The first 32 of" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/nodes/large/",
        "/nodes/large/devices/",
        "/usage/idle/",
        "/allocations/",
        "/api/v1/devices/?node=large",
        "/api/v1/allocations/",
        "/api/v1/nodes/large/",
    ],
)
@pytest.mark.parametrize("column", ["links", "disputed"])
def test_what_is_long_is_read_once_a_node_and_not_with_each_of_its_devices(client, path, column):
    """A node of 256 GPUs has a quarter of a megabyte of links, and as much again where it claims what others have: read
    with each device they made a page take 600 MB.
    """
    NodeFactory(name="large", gpus=4)
    client.force_login(UserFactory(role=Role.ADMIN))
    with CaptureQueriesContext(connection) as asked:
        assert client.get(path).status_code == 200
    reads = [one["sql"] for one in asked.captured_queries if f'"{column}"' in one["sql"].partition(" FROM ")[0]]
    assert not [sql for sql in reads if 'FROM "nodes_node"' not in sql]
    assert len(reads) <= 1


@pytest.mark.parametrize("path", ["/nodes/", "/api/v1/nodes/"])
def test_lists_of_nodes_read_no_links(client, path):
    """Reading 64 nodes took 70 ms of the process's one interpreter once four of them had 256 GPUs each."""
    NodeFactory(name="large", gpus=4)
    client.force_login(UserFactory(role=Role.ADMIN))
    with CaptureQueriesContext(connection) as asked:
        assert b"large" in client.get(path).content
    assert not [one["sql"] for one in asked.captured_queries if '"links"' in one["sql"]]
