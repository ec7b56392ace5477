"""Pages of models, runners and slots: what they show, and who may stop a slot."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from access.choices import Role
from inference.choices import RequestState, State
from inference.models import Model, Request, Slot
from inference.overviews import runners_shown, served_shown
from storage.clock import database_now
from tests.factories import UserFactory
from tests.slots import GI, SlotWorld, sample_of


@pytest.fixture
def world(db: None, redis_url: str, settings: Settings) -> SlotWorld:
    """Two models, one of which has a slot that is ready; the other one waits, and so do two requests of it."""
    settings.GPUPLANE_REDIS_URL = redis_url
    world = SlotWorld()
    world.model("team/chat", memory=15, keep_warm=3)
    world.model("draw", memory=90, gpu_counts=[1])
    world.runner(gpus=2, memory=40, disk=["team/chat"])
    world.ready("team/chat")
    world.requests("draw", 2)
    world.converge()
    Slot.objects.update(log_tail="<b>loaded</b>")
    return world


def client(role: Role = Role.VIEWER) -> Client:
    found = Client()
    found.force_login(UserFactory(role=role))
    return found


def test_the_page_of_models(world: SlotWorld) -> None:
    """VIEW-1 VIEW-2c SLOT-7b models with memory and slots, who waits with the reason, what was served."""
    assert world
    text = client().get("/inference/").content.decode()
    assert "1 GPU: 15 GiB" in " ".join(text.split())
    assert "2 GPUs: 7.5 GiB on each" in " ".join(text.split())
    assert "no GPU has 90Gi free; best n1/" in text
    assert 'id="served-by-minute"' in text
    for slot in Slot.objects.all():
        assert f"/inference/slots/{slot.pk}/" in text
    assert "no GPU has 90Gi free" in client().get("/inference/parts/").content.decode()


def test_nothing_there(db: None) -> None:
    """VIEW-1 an empty fleet says what would be here."""
    for address, want in (("/inference/", "No models"), ("/inference/runners/", "No runners")):
        assert want in client().get(address).content.decode()


def test_runners(world: SlotWorld) -> None:
    """VIEW-1 VIEW-2c SLOT-8b each GPU with its slots as blocks, what others claim, and what is measured beyond."""
    slots = {slot.gpus[0]: slot for slot in Slot.objects.filter(state=State.READY)}
    page = client().get("/inference/runners/").content.decode()
    assert all(f"team/chat {slot.pk}, ready" in page for slot in slots.values())
    (runner,) = runners_shown({"n1": sample_of("n1", [35 * GI, 0])})
    first, second = runner.gpus
    assert [round(width, 1) for width, *_ in first.parts] == [37.5] * (world.used()[0] // 15)
    assert first.measured_parts[1][:2] == (100 * (35 - world.used()[0]) / 40, "bad")
    assert (second.measured, second.measured_parts[1][0]) == (0, 0)


def test_one_model(world: SlotWorld) -> None:
    """VIEW-1 VIEW-2c names have slashes; what was written, and its slots."""
    assert world
    text = client().get("/inference/models/team/chat/").content.decode()
    assert "keepWarm" in text
    assert "as given" in text
    assert client().get("/inference/models/none/").status_code == 404


def test_one_slot(world: SlotWorld) -> None:
    """VIEW-1 VIEW-2c what it holds, and what it wrote, as text; an operator stops it."""
    slot = Slot.objects.filter(state=State.READY).first()
    assert slot is not None
    address = f"/inference/slots/{slot.pk}/"
    text = client().get(address).content.decode()
    assert "&lt;b&gt;loaded&lt;/b&gt;" in text
    assert "/stop/" not in text
    assert client().post(f"{address}stop/").status_code == 403
    operator = client(Role.OPERATOR)
    assert "/stop/" in operator.get(address).content.decode()
    assert operator.post(f"{address}stop/").status_code == 302
    slot.refresh_from_db()
    assert slot.state == State.DRAINING
    operator.post(f"{address}stop/")
    assert "draining already" in operator.get(address).content.decode()
    world.converge()
    assert Slot.objects.get(pk=slot.pk).state == State.STOPPED


def test_what_was_served(world: SlotWorld) -> None:
    """VIEW-1 tokens a second and waiting times, by minute of the last hour."""
    now = database_now().replace(second=30)
    for minutes, tokens in ((2, 120), (2, 60), (5, 30)):
        at = now - timedelta(minutes=minutes)
        Request.objects.create(
            model_name="chat",
            state=RequestState.DONE,
            arrived_at=at - timedelta(seconds=4),
            started_at=at,
            ended_at=at,
            tokens=tokens,
        )
    served = served_shown(now)
    assert len(served["times"]) == len(served["tokens"]) == len(served["waited"]) == 60
    assert [value for value in served["tokens"] if value] == [0.5, 3]
    assert [value for value in served["waited"] if value is not None] == [4, 4]


def test_queries_do_not_grow(world: SlotWorld) -> None:
    """VIEW-1 more models and slots cost no more queries."""

    def queries() -> int:
        viewer = client()
        with CaptureQueriesContext(connection) as found:
            viewer.get("/inference/parts/")
            viewer.get("/inference/runners/")
        return len(found)

    before = queries()
    for number in range(5):
        world.model(f"more-{number}", memory=1)
        world.runner(f"m{number}", gpus=2)
        world.requests(f"more-{number}")
    world.converge()
    assert Model.objects.count() == 7
    assert queries() == before
