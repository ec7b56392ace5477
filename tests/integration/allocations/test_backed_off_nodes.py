"""Pods that wait because nodes begin no new group for now: the reason that they and their scheduler are given."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from access.actors import SYSTEM
from access.choices import Role
from allocations.backed_off_nodes import PUT_OFF, PUT_OFF_DEVICE
from allocations.choices import GroupState
from allocations.explain import pod_explain
from allocations.ledger.groups import fail_group
from allocations.models import GroupBackOff, PodRefusal
from allocations.waiting import plan_waiting
from nodes.choices import Mode
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.extender import filter_answer, filtered, pod_manifest
from tests.factories import NodeFactory, UserFactory
from tests.groups import leave, share

FAILURE = "UnexpectedAdmissionError: only 0 GPUs left"
NODES = ("full", "off", "plain")


@pytest.fixture
def now(ledger_db: TestDatabase) -> datetime:
    """`off` has free GPUs and begins no new group; `full` has none free; `plain` has no GPU."""
    assert ledger_db
    for name, gpus in (("full", 1), ("off", 2), ("plain", 0)):
        NodeFactory(name=name, gpus=gpus, mode=Mode.DEVICE_PLUGIN)
    for pod in ("first", "second"):
        share(pod, node="full")
    group = share("unlucky", node="off", state=GroupState.STARTING)
    moment = database_now()
    assert fail_group(group.pk, FAILURE, now=moment, actor="test")
    leave("unlucky")
    Device.objects.filter(node__name="off").update(gpu_group="")
    return moment


def half(name: str) -> dict[str, Any]:
    return pod_manifest(name, annotations={"gpu-fraction": "0.5"})


def explained(name: str) -> dict[str, Any]:
    return pod_explain("research", name, SYSTEM)


def test_filter_tells_that_the_node_begins_no_group(now: datetime) -> None:
    """SHARE-5 VIEW-3 the node that would serve says why it does not; the others keep their own reasons."""
    answer = filter_answer(half("waits"), NODES[:2])
    assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]} == {
        "full": "no device with 50 core free",
        "off": PUT_OFF.text,
    }
    refusal = PodRefusal.objects.get(pod_name="waits")
    assert refusal.reasons[PUT_OFF.text] == 1
    assert PUT_OFF.text in refusal.summary


def test_explain_tells_why_and_until_when(now: datetime) -> None:
    """VIEW-3 SHARE-5 node by node and device by device, with the failure before and the end of the back-off; what is
    free again is said at once.
    """
    assert filtered(half("waits"), NODES[:2]) is None
    told = explained("waits")
    until = now + timedelta(seconds=30)
    nodes = {one["node"]: one for one in told["nodes"]}
    assert nodes["off"]["reason"] == f"{PUT_OFF.text}, until {until:%H:%M:%S} UTC: {FAILURE}"
    assert [device["reason"] for device in nodes["off"]["devices"]] == [PUT_OFF_DEVICE] * 2
    assert {"reason": PUT_OFF.text, "nodes": 1} in told["reasons"]
    assert f"1: {PUT_OFF.text}" in told["summary"] or f"1 of 3 nodes: {PUT_OFF.text}" in told["summary"]
    assert PUT_OFF.text not in nodes["full"]["reason"]
    GroupBackOff.objects.all().delete()
    Device.objects.update(no_group_until=None, revision=10**9)
    assert explained("waits")["summary"] == "off can serve it now; the scheduler has not asked again yet"


def test_the_page_of_the_pod_tells_it_too(now: datetime, client: Client) -> None:
    """VIEW-3 VIEW-2 the same words on the pod's page."""
    assert filtered(half("waits"), NODES[:2]) is None
    client.force_login(UserFactory(role=Role.VIEWER, namespaces=["research"]))
    page = client.get("/pending/research/waits/").content.decode()
    assert PUT_OFF.text in page
    assert FAILURE in page


def test_a_pod_that_the_scheduler_did_not_ask_about(now: datetime) -> None:
    """VIEW-3 planning for pods that wait knows of the back-off, and names no node that begins no group."""
    assert filtered(half("waits"), NODES[:2]) is None
    PodRefusal.objects.update(count=0, seen_at=now, planned_at=None)
    assert plan_waiting(now=now + timedelta(seconds=1)) == 1
    assert PodRefusal.objects.get().reasons[PUT_OFF.text] == 1


def test_who_fits_into_a_group_that_there_is_waits_for_none(now: datetime) -> None:
    """SHARE-5 nobody else is held up: groups that are there take sharers meanwhile, and the other node new groups."""
    leave("second")
    assert filtered(half("joins"), NODES[:2]) == "full"
    NodeFactory(name="other", gpus=1, mode=Mode.DEVICE_PLUGIN)
    assert filtered(half("begins"), [*NODES[:2], "other"]) == "other"
    assert explained("begins")["node"] == "other"


def test_when_its_time_has_come_the_node_serves(now: datetime) -> None:
    """SHARE-5 the back-off ends by the clock."""
    Device.objects.filter(node__name="off").update(no_group_until=now - timedelta(seconds=1), revision=10**9)
    assert filtered(half("goes"), NODES[:2]) == "off"
