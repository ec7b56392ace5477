"""Models, runners, slots and requests over REST."""

from __future__ import annotations

import io
from typing import Any

import pytest

from allocations.engine.gguf import KvType, estimate, read_header
from audit.models import Event
from inference.choices import State
from inference.models import Model, Request, Runner, Slot
from inference.slot_models import slot_model
from runner.protocol import MOST_ARGS, MOST_GPUS
from storage.clock import database_now
from tests.factories import NodeFactory
from tests.gguf_files import qwen3_8b
from tests.integration.rest.conftest import Api
from tests.slots import GI

pytestmark = pytest.mark.django_db
CHAT = {"name": "meta/Llama-3:8b", "runtime": "ollama", "memory": "15Gi"}
EVERYTHING = {
    "name": "all",
    "runtime": "llamacpp",
    "source": "/models/all.gguf",
    "memory": 3 * GI,
    "memoryPerGpu": {"2": [GI, 2 * GI]},
    "parallel": 3,
    "contextLength": 8192,
    "kvType": "q8_0",
    "gguf": "all.gguf",
    "heads": 32,
    "gpuCounts": [1, 2],
    "idleSeconds": 10,
    "keepWarm": 1,
    "args": ["--flash-attn", "-v"],
    "selector": {"zone": "a"},
    "image": "registry/all:1",
}


def test_a_models_life(viewer: Api, operator: Api, admin: Api) -> None:
    """SLOT-1b VIEW-2 everybody reads, admins write; names have slashes as models of hubs do."""
    for who in (viewer, operator):
        assert who.post("models/", CHAT)[0] == 403
    status, made = admin.post("models/", CHAT)
    assert (status, made["memory"], made["parallel"], made["revision"]) == (201, 15 * GI, 4, 1)
    assert admin.post("models/", CHAT)[0] == 409
    address = "models/meta/Llama-3:8b/"
    assert viewer.get(address)[1] == viewer.get("models/")[1]["results"][0] == made
    assert admin.patch(address, {"keepWarm": 2})[1]["revision"] == 1, "slots go on"
    status, changed = admin.patch(address, {"args": ["--x"], "idleSeconds": None})
    assert (status, changed["revision"], changed["keepWarm"], changed["idleSeconds"]) == (200, 2, 2, 300)
    assert admin.put(address, CHAT)[1]["revision"] == 3
    assert admin.patch(address, {"name": "other"})[0] == 400
    assert admin.delete(address)[0] == 204
    assert viewer.get(address)[0] == 404
    kinds = Event.objects.filter(kind__startswith="model.").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["model.created", *["model.changed"] * 3, "model.deleted"]


def test_all_fields_come_back(admin: Api) -> None:
    """SLOT-1b what was written is what is read, and what is read can be written."""
    made = admin.post("models/", EVERYTHING)[1]
    assert {key: made[key] for key in EVERYTHING} == EVERYTHING
    again = {key: made[key] for key in EVERYTHING}
    assert admin.put("models/all/", again)[1]["revision"] == 1, "nothing was changed"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"name": ""}, "name", id="no name"),
        pytest.param({"name": "a b"}, "name", id="a name with a blank"),
        pytest.param({"name": "a//b"}, "name", id="a name with an empty part"),
        pytest.param({"name": "m:lora:x"}, "name", id="a name that reads as a LoRA's"),
        pytest.param({"name": "x" * 201}, "name", id="a long name"),
        pytest.param({"runtime": "tensorrt"}, "runtime", id="an unknown runtime"),
        pytest.param({"runtime": None}, "runtime", id="no runtime"),
        pytest.param({"memory": 0}, "memory", id="no memory"),
        pytest.param({"memory": "-1"}, "memory", id="memory below 0"),
        pytest.param({"memory": "many"}, "memory", id="memory that is no quantity"),
        pytest.param({"memoryPerGpu": {"2": ["1Gi"]}}, "memoryPerGpu.2", id="one amount for two GPUs"),
        pytest.param({"memoryPerGpu": {"0": []}}, "memoryPerGpu.0", id="for no GPU"),
        pytest.param({"parallel": 0}, "parallel", id="no request at once"),
        pytest.param({"parallel": 2**31}, "parallel", id="more requests than the column takes"),
        pytest.param({"contextLength": 2**31}, "contextLength", id="more tokens than the column takes"),
        pytest.param({"kvType": "f64"}, "kvType", id="an unknown kind of keys"),
        pytest.param({"gpuCounts": [0]}, "gpuCounts[0]", id="on no GPU"),
        pytest.param({"keepWarm": -1}, "keepWarm", id="fewer than none kept warm"),
        pytest.param({"args": "--x"}, "args", id="arguments that are no list"),
        pytest.param({"args": ["a\nb"]}, "args[0]", id="an argument of two lines"),
        pytest.param({"gpuCounts": [1, MOST_GPUS + 1]}, "gpuCounts[1]", id="on more GPUs than a runner takes"),
        pytest.param({"selector": ["zone"]}, "selector", id="a selector that is no object"),
        pytest.param({"memroy": 1}, "memroy", id="a slip of the pen"),
    ],
)
def test_what_is_no_model(admin: Api, change: dict[str, Any], field: str) -> None:
    """SLOT-1b 400 with the field; nothing is written."""
    status, problem = admin.post("models/", {**CHAT, **change})
    assert (status, problem.get("field")) == (400, field)
    assert not Model.objects.exists()


def test_more_arguments_than_a_runner_takes(admin: Api) -> None:
    """SLOT-1b SLOT-2 are refused: a frame that tells of them would end each session of its runner."""
    assert admin.post("models/", {**CHAT, "args": ["-v"] * MOST_ARGS})[0] == 201
    status, problem = admin.patch("models/meta/Llama-3:8b/", {"args": ["-v"] * (MOST_ARGS + 1)})
    assert (status, problem.get("field")) == (413, "args")


@pytest.fixture
def slot(viewer: Api) -> Slot:
    """A slot that is planned on n1, whose runner is connected, and a request of the viewer's that waits for it."""
    now = database_now()
    model = Model.objects.create(name="chat", runtime="ollama", memory=GI, created_at=now, changed_at=now)
    runner = Runner.objects.create(
        node=NodeFactory(name="n1", gpus=1), runtimes=["ollama"], seen_at=now, registered_at=now, changed_at=now
    )
    made = Slot.objects.create(
        id="slotone",
        model=model,
        model_name="chat",
        model_revision=1,
        node="n1",
        runner=runner,
        gpus=[0],
        memory=[GI],
        planned_at=now,
        changed_at=now,
        log_tail="loading",
    )
    Request.objects.create(model_name="chat", arrived_at=now, user=viewer.user, slot=made, reason="it is planned")
    return made


def test_slots(slot: Slot, viewer: Api, operator: Api) -> None:
    """SLOT-1b VIEW-2 slots with what they hold, one with its log; an operator stops it."""
    (row,) = viewer.get("slots/?model=chat&runner=n1&state=planned")[1]["results"]
    assert (row["id"], row["gpus"], row["memory"], row["allocation"]) == ("slotone", [0], [GI], None)
    assert viewer.get("slots/?model=other")[1]["results"] == []
    assert viewer.get("slots/slotone/")[1]["log_tail"] == "loading"
    assert viewer.delete("slots/slotone/")[0] == 403
    assert operator.delete("slots/slotone/")[0] == 204
    assert operator.delete("slots/slotone/")[0] == 409
    slot.refresh_from_db()
    assert (slot.state, slot.reason) == (State.DRAINING, "stopped by olga")
    assert viewer.get("slots/none/")[0] == 404


def test_runners(slot: Slot, viewer: Api) -> None:
    """SLOT-1b VIEW-2 runners by their nodes."""
    assert slot
    (row,) = viewer.get("runners/?state=connected")[1]["results"]
    assert (row["node"], row["runtimes"], row["slots"]) == ("n1", ["ollama"], 1)
    assert viewer.get("runners/n1/")[1] == row
    assert viewer.get("runners/n2/")[0] == 404


def test_requests(slot: Slot, viewer: Api, operator: Api, admin: Api) -> None:
    """SLOT-1b SLOT-7b requests with their reasons, by both names; whose it is, for its owner and admins."""
    (row,) = viewer.get("requests/?model=chat&state=waiting")[1]["results"]
    assert (row["slot"], row["reason"], row["user"]) == (slot.pk, "it is planned", "vera")
    assert viewer.get("workloads/")[1]["results"] == [row]
    assert admin.get(f"requests/{row['id']}/")[1] == row
    assert operator.get(f"workloads/{row['id']}/")[1] == {**row, "user": None}


def test_the_memory_of_a_slot_is_its_own(slot: Slot, admin: Api) -> None:
    """SLOT-1b nobody releases, renews or resizes what a model runs in."""
    from inference.rounds.memory import settle

    settle([slot], now=database_now())
    slot.refresh_from_db()
    address = f"allocations/{slot.allocation_id}/"
    assert admin.get(address)[1]["state"] == "bound"
    assert admin.delete(address)[0] == admin.post(f"{address}resize/", {"memory": "2Gi"})[0] == 409


BYTES = "application/octet-stream"


def test_an_estimate_by_upload(viewer: Api) -> None:
    """SLOT-6b the first megabytes of a file are enough, and nothing is kept."""
    status, found = viewer.post(
        "gguf-headers/?context=40960&parallel=2&kv=q8_0&gpus=2", raw=qwen3_8b(), content_type=BYTES
    )
    assert status == 200
    header = read_header(io.BytesIO(qwen3_8b()))
    want = estimate(header, context=40_960, parallel=2, kv=KvType.Q8_0, gpus=2)
    assert (found["total"], tuple(found["per_gpu"])) == (want.total, want.per_gpu)
    assert found["parts"]["kv"] == want.parts.kv


def test_a_header_is_kept_with_its_model(viewer: Api, admin: Api) -> None:
    """SLOT-6b SLOT-7b slots are planned by it, by the model's settings; another file's name forgets it."""
    admin.post("models/", {"name": "qwen", "runtime": "llamacpp", "gguf": "qwen.gguf", "contextLength": 4096})
    model = Model.objects.get()
    assert slot_model(model).unknown == "the header of qwen.gguf was not sent"
    address = "gguf-headers/?model=qwen"
    assert viewer.post(address, raw=qwen3_8b(), content_type=BYTES)[0] == 403
    status, found = admin.post(address, raw=qwen3_8b(), content_type=BYTES)
    assert (status, found["context"], found["parallel"]) == (200, 4096, 4)
    shown = admin.get("models/qwen/")[1]
    assert shown["estimates"]["1"] == found["per_gpu"]
    assert shown["revision"] == 2
    admin.post(address, raw=qwen3_8b(), content_type=BYTES)
    assert admin.patch("models/qwen/", {"contextLength": 8192})[1]["estimates"]["1"][0] > found["total"]
    assert admin.patch("models/qwen/", {"gguf": "other.gguf"})[1]["estimates"] == {}
    assert viewer.user is not None
    assert admin.post("gguf-headers/?model=none", raw=qwen3_8b(), content_type=BYTES)[0] == 404


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        pytest.param(b"", BYTES, 400, id="nothing"),
        pytest.param(b"GGUF", BYTES, 400, id="cut off"),
        pytest.param(qwen3_8b()[:5_000], BYTES, 400, id="cut off within the header"),
        pytest.param(b"\x00" * 100, BYTES, 400, id="another file"),
        pytest.param(b"{}", "application/json", 415, id="JSON"),
    ],
)
def test_what_is_no_header(admin: Api, body: bytes, content_type: str, status: int) -> None:
    """SLOT-6b one sentence says what is wrong, and the model is as before."""
    admin.post("models/", {"name": "qwen", "runtime": "llamacpp"})
    assert admin.post("gguf-headers/?model=qwen", raw=body, content_type=content_type)[0] == status
    assert Model.objects.get().gguf_header is None
