"""Slots of llama.cpp: a real runtime that a runner starts, with a real model of random weights.

It runs on the CPU; the ledger's GPUs are those of a made-up node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from allocations.engine.gguf import estimate
from allocations.gguf_files import header_of
from inference.choices import State
from inference.models import Model, Runner, Slot
from tests.runner_machine import (
    SOON,
    Machine,
    all_is_well,
    connected,
    eventually,
    is_now,
    is_past,
    through_the_gateway,
)
from tests.servers.web import LiveApp
from tests.slots import SlotWorld

WORD = re.compile(r"( [a-z]{2,3})+")
PROMPT = {"prompt": "hello", "max_tokens": 12, "temperature": 0}


@pytest.fixture
def llama(machine: Machine, world: SlotWorld, python: str, models: Path) -> Machine:
    """A machine with one GPU of 40 GiB and a runner that has llama.cpp."""
    connected(machine, world, *options(python, models))
    return machine


def options(python: str, models: Path) -> Sequence[str]:
    return "--llamacpp-python", python, "--models", str(models)


def slot_of(world: SlotWorld, model: str, *, lora: str = "", **fields: Any) -> Slot:
    """A slot of the model for a request that waits, once it is ready."""
    if not Model.objects.filter(name=model).exists():
        world.model(model, runtime="llamacpp", source=f"{model}.gguf", idle_seconds=0, **fields)
    (request,) = world.requests(model, lora=lora)
    world.round()
    slot = Slot.objects.filter(model_name=model, lora=lora).exclude(state=State.STOPPED).latest("planned_at")
    eventually(lambda: (world.round(), is_now(slot, State.READY))[1], "ready")
    request.delete()
    return slot


def said(slot: Slot, **body: Any) -> str:
    """What the model goes on with."""
    answer = httpx.post(f"http://{slot.address}/v1/completions", json={**PROMPT, **body}, timeout=SOON, verify=False)
    text: str = answer.raise_for_status().json()["choices"][0]["text"]
    return text


def streamed(slot: Slot, tokens: int) -> list[str]:
    """The tokens of a chat, as they came."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": True, "model": "tiny"}
    url = f"http://{slot.address}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=SOON, verify=False) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    deltas = [msgspec.json.decode(line)["choices"][0]["delta"] for line in lines[:-1]]
    return [delta["content"] for delta in deltas if delta.get("content")]


def test_tokens_of_a_real_model(llama: Machine, world: SlotWorld) -> None:
    """SLOT-4c a slot that the runner starts streams real tokens, and serves the next request warm."""
    assert Runner.objects.get(node__name=llama.node).models_on_disk == ["other.gguf", "tiny.gguf"]
    slot = slot_of(world, "tiny")
    before = llama.pids(slot)
    tokens = streamed(slot, 20)
    assert len(tokens) == 20
    assert WORD.fullmatch("".join(tokens))
    assert said(slot) == said(slot)
    world.round()
    assert (llama.pids(slot), Slot.objects.count()) == (before, 1)
    all_is_well()


def test_through_the_gateway(llama: Machine, world: SlotWorld, live_app: LiveApp) -> None:
    """SLOT-3b real tokens of a slot that was started for the request, and of its adapter in a slot of its own."""
    world.model("tiny", runtime="llamacpp", source="tiny.gguf")
    body = {"model": "tiny", "max_tokens": 15, "temperature": 0}
    words = through_the_gateway(live_app, world, **body)
    assert len(words) == 15
    assert WORD.fullmatch("".join(words))
    assert through_the_gateway(live_app, world, **body) == words
    assert through_the_gateway(live_app, world, **body, lora="law") != words
    assert sorted(Slot.objects.values_list("lora", "state")) == [("", "ready"), ("law", "ready")]
    assert len(llama.pids(Slot.objects.get(lora=""))) == 2
    all_is_well()


def test_an_eviction(llama: Machine, world: SlotWorld) -> None:
    """SLOT-5b the idle slot goes, its process first, and the other model has its memory then."""
    first = slot_of(world, "tiny", memory=30)
    second = slot_of(world, "other", memory=30)
    assert is_now(first, State.STOPPED)
    assert (llama.pids(first), len(llama.pids(second))) == ([], 2)
    assert world.used(llama.node) == [30]
    assert WORD.fullmatch(said(second))
    again = slot_of(world, "tiny", memory=30)
    assert is_now(second, State.STOPPED)
    assert said(again) != ""
    all_is_well()


def test_a_crash(llama: Machine, world: SlotWorld) -> None:
    """SLOT-2 a runtime that is killed has failed, its memory is free, and another is started for the next request."""
    slot = slot_of(world, "tiny")
    text = said(slot)
    llama.kill_runtime(slot)
    eventually(lambda: is_now(slot, State.STOPPED), "stopped")
    assert slot.reason.startswith("its process was ended by SIGKILL")
    assert "llama" in slot.log_tail
    world.age(3600)
    other = slot_of(world, "tiny")
    assert other.pk != slot.pk
    assert said(other) == text
    all_is_well()


def test_a_restart_of_the_runner(llama: Machine, world: SlotWorld, python: str, models: Path) -> None:
    """SLOT-2 the model stays loaded."""
    slot = slot_of(world, "tiny")
    text, before = said(slot), llama.pids(slot)
    session = Runner.objects.get(node__name=llama.node).session
    llama.processes[-1].kill()
    llama.processes[-1].wait(10)
    assert said(slot) == text
    llama.start(*options(python, models))
    eventually(partial(is_past, llama.node, session), "another session")
    world.round()
    assert is_now(slot, State.READY)
    assert (llama.pids(slot), said(slot)) == (before, text)


def test_an_adapter(llama: Machine, world: SlotWorld) -> None:
    """SLOT-4c a LoRA has a slot of its own, and says something else than its model."""
    base = slot_of(world, "tiny")
    adapted = slot_of(world, "tiny", lora="law")
    assert adapted.pk != base.pk
    assert said(adapted) != said(base)
    assert WORD.fullmatch(said(adapted))


def test_an_adapter_that_is_not_there(llama: Machine, world: SlotWorld) -> None:
    """SLOT-4c the slot fails with the reason, and the request waits with it."""
    world.model("tiny", runtime="llamacpp", source="tiny.gguf")
    world.requests("tiny", lora="none")
    world.round()
    slot = Slot.objects.get()
    eventually(lambda: is_now(slot, State.STOPPED), "stopped")
    assert slot.reason == "the LoRA none.gguf is not on this machine"
    world.round()
    assert "the LoRA none.gguf is not on this machine" in world.waiting()[0][2]
    assert llama.pids(slot) == []


@pytest.mark.parametrize("context", [256, 512])
def test_the_estimate(llama: Machine, world: SlotWorld, models: Path, context: int) -> None:
    """SLOT-6c weights and KV are what llama.cpp says that it takes, to the last digit that it prints, and the total is
    not below what it takes.
    """
    slot = slot_of(world, "tiny", context_length=context)
    log = llama.log_of(slot)
    mib = 2**20
    whats = ("CPU_Mapped model buffer size", "CPU KV buffer size", "CPU compute buffer size")
    weights, kv, compute = (float(re.findall(rf"{what} *= *([0-9.]+) MiB", log)[0]) for what in whats)
    header = header_of(models / "tiny.gguf")
    found = estimate(header, context=context)
    embedding = 355 * 64 * 4
    assert (found.parts.blocks + found.parts.output + embedding) / mib == pytest.approx(weights, abs=0.006)
    assert found.parts.kv / mib == pytest.approx(kv, abs=0.006)
    assert found.total / mib > weights + kv + compute
