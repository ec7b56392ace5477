"""Why a pod of a queue waits, and where its queue and gang are: over REST and on pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from access.choices import Role
from access.tokens import issue
from tests.factories import UserFactory
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite", "postgresql"], indirect=True)


def explained(name: str) -> Any:
    """The answer of REST."""
    headers = {"Authorization": f"Bearer {issue(UserFactory(role=Role.ADMIN))}"}
    answer = Client().get(f"/api/v1/pods/{NAMESPACE}/{name}/explain/", headers=headers)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_from_quota_over_gang_to_node_and_device(queues: Queues) -> None:
    """VIEW-3b QUEUE-5 one answer: the queue's amounts, the gang, why the workload waits, each node, each device."""
    queues.world.node("n1", gpus=2)
    queues.world.node("n2", gpus=1)
    queues.queue("research", quotas=[{"deserved": 3, "limit": 8}])
    queues.run("there", queue="research")
    queues.gang("ring", 2)
    for number in range(2):
        queues.pod(f"r{number}", queue="research", gang="ring", gpus=2)
    queues.round()
    told = explained("r0")
    assert told["summary"] == told["workload"]["reason"] == queues.why("r0")
    assert (told["workload"]["queue"], told["workload"]["gang"]) == ("research", "ring")
    (quota,) = told["workload"]["quotas"]
    assert (quota["deserved"], quota["limit"], quota["allocated"], quota["fairShare"]) == (3, 8, 1, 3)
    whys = {one["node"]: one["reason"] for one in told["nodes"]}
    assert set(whys) <= {"n1", "n2"}
    assert whys["n2"]
    assert all(one["reason"] for one in told["device_reasons"])


def test_a_quota_is_told_before_nodes(queues: Queues) -> None:
    """VIEW-3b QUEUE-5 also where no node has room."""
    queues.world.node("n1", gpus=1)
    queues.queue("research", quotas=[{"limit": 1}])
    queues.run("there", queue="research")
    queues.pod("more", queue="research")
    queues.round()
    assert explained("more")["summary"] == "queue research holds 1 of its limit of 1 GPUs"


def test_pages_of_queues_and_gangs(queues: Queues) -> None:
    """VIEW-2b the tree, a queue with who waits in which place and why, gangs, and one with its members by node."""
    queues.world.node("n1", gpus=4)
    queues.queue("company", quotas=[{"deserved": 2}])
    queues.queue("research", parent="company", quotas=[{"deserved": 1, "limit": 2}])
    queues.gang("ring", 2)
    for number in range(2):
        queues.pod(f"r{number}", queue="research", gang="ring")
    queues.settle()
    for number in range(2):
        queues.bind(f"r{number}")
    queues.pod("more", queue="research")
    queues.pod("later", queue="research")
    queues.round()
    page = Client()
    page.force_login(UserFactory(role=Role.ADMIN))
    for path, words in {
        "/queues/": ["company", "research", "borrows 1", "fair share 2"],
        "/queues/research/": ["more", "later", "queue research holds 2 of its limit of 2 GPUs"],
        "/gangs/": ["ring", NAMESPACE],
        f"/gangs/{NAMESPACE}/ring/": ["r0", "r1", "n1", "2 pods"],
        f"/pending/{NAMESPACE}/more/": ["queue research holds 2 of its limit of 2 GPUs"],
    }.items():
        answer = page.get(path)
        assert answer.status_code == 200, path
        for word in words:
            assert word in answer.content.decode(), (path, word)
