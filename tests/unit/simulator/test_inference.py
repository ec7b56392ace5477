"""Models, runners and users of the simulated fleet."""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypeVar, cast

import pytest

from kube.quantities import parse_quantity
from runner import simulated
from simulator.api import Refused, ServerAway
from simulator.fleet import FOR_MODELS, FOR_PODS, USE_LABEL, make_fleet
from simulator.inference import MODELS, Users
from simulator.occupancy import Occupancy
from simulator.signals import Signals


@pytest.mark.parametrize(
    ("nodes", "want"), [(64, ["gpu-d-007", "gpu-d-008"]), (16, ["gpu-d-001", "gpu-d-002"]), (15, [])]
)
def test_nodes_for_models(nodes: int, want: list[str]) -> None:
    """Two of the nodes that pods do not come to; none of a small fleet."""
    fleet = make_fleet(nodes)
    assert [node.name for node in fleet if node.use == FOR_MODELS] == want
    assert {node.inventory()["labels"][USE_LABEL] for node in fleet if node.name not in want} == {FOR_PODS}
    occupancy = Occupancy(Signals(fleet, seed=1), fleet=fleet, for_pods=[one for one in fleet if one.use == FOR_PODS])
    assert occupancy.size == 8 * (nodes - len(want))
    assert not set(want) & set(occupancy.nodes_with_room(1))


def test_models_do_not_all_fit() -> None:
    """Each large one fits beside the small one on a node of its own, two large ones do not."""
    node = next(node for node in make_fleet(64) if node.use == FOR_MODELS)
    size = node.kind.memory_gib * 2**30
    *large, small = MODELS
    amounts = [parse_quantity(model["memoryPerGpu"]["8"][0]) for model in large]
    assert all(amount + parse_quantity(small["memory"]) <= size for amount in amounts)
    assert min(amounts) + sorted(amounts)[1] > size
    assert len(large) > 2
    assert all(model["heads"] % 8 == 0 for model in large)


def test_arguments_are_those_of_the_runtime() -> None:
    for model in MODELS:
        assert simulated.parsed(["--port=1", *model["args"]]).start_seconds == 5


Value = TypeVar("Value")


class Api:
    """Answers each call with what it was given, by turns; then ends the test."""

    def __init__(self, *, models: list[Exception | bool], chats: list[Exception | str]) -> None:
        self.models, self.chats = models, chats
        self.made: list[str] = []
        self.asked: list[str] = []
        self.waited = 0
        self.enough = asyncio.Event()

    async def create_model(self, body: dict[str, Any]) -> bool:
        self.made.append(body["name"])
        return _given(self.models.pop(0) if self.models else True)

    async def until_alive(self) -> None:
        self.waited += 1

    async def chat(self, model: str, *, tokens: int) -> str:
        self.asked.append(model)
        assert tokens > 0
        if len(set(self.asked)) == len(MODELS) and len(self.asked) > 20:
            self.enough.set()
        return _given(self.chats.pop(0) if self.chats else "word")


def _given(one: Exception | Value) -> Value:
    if isinstance(one, Exception):
        raise one
    return one


async def test_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are made once, again where the server was away; all are asked, whatever some of them answer."""
    api = Api(
        models=[ServerAway("restarts"), True, False, Refused(400, "no")],
        chats=[Refused(503, "no slot became free"), ServerAway("restarts"), "word"],
    )
    users = Users(cast("Any", api), rng=random.Random(1), pause=lambda: 0.001)
    monkeypatch.setattr("simulator.inference.THINK_SECONDS", 0.001)
    task = asyncio.create_task(users.run())
    async with asyncio.timeout(30):
        await api.enough.wait()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.made == [MODELS[0]["name"], *(model["name"] for model in MODELS)]
    assert api.waited == 1
