"""Models, runners and users of them: two nodes run slots of the simulated runtime, and requests come in waves.

Started by `__main__`. Four models share two nodes on which three of them have no room beside each other, so slots are
started, serve, become idle and make room. Invariants: runners use the real runner's program and session, and their
slots are real processes, which end with the simulator; no pod of the simulated cluster comes to these nodes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from runner.program import Ports, Program, State, StateTaken
from runner.runtimes.simulated import Simulated
from runner.session import Session
from simulator.api import Api, Refused, ServerAway

HOST: Final = "127.0.0.1"
FIRST_PORT, LAST_PORT = 22_000, 22_999
WAVE_SECONDS: Final = 15.0
THINK_SECONDS: Final = 2.0
"""The requests of a wave come within so long."""
SPEED: Final = ("--start-seconds=5", "--first-token-seconds=0.3", "--tokens-a-second=25")


def _model(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "runtime": "simulated", "idleSeconds": 15, "parallel": 4, "args": list(SPEED), **fields}


MODELS: Final = (
    _model("llama-405b", memoryPerGpu={"8": ["100Gi"] * 8}, gpuCounts=[8], heads=128),
    _model("deepseek-v3", memoryPerGpu={"8": ["96Gi"] * 8}, gpuCounts=[8], heads=128),
    _model("qwen-coder", memoryPerGpu={"8": ["88Gi"] * 8}, gpuCounts=[8], heads=96),
    _model("phi-4", memory="30Gi", gpuCounts=[1], keepWarm=1, parallel=8),
)

log = structlog.get_logger(__name__)


async def run_runner(node: str, *, url: str, token: str, folder: Path) -> None:
    """The node's runner, until cancelled; then its slots end."""
    try:
        state = State.open(folder / node)
    except (OSError, StateTaken) as error:
        log.error("inference.no_runner", node=node, why=str(error))  # noqa: TRY400 - no traceback needed
        return
    runtimes = {"simulated": Simulated((folder / "memory").resolve(), tuple(model["name"] for model in MODELS))}
    program = Program(state, runtimes, Ports(HOST, FIRST_PORT, LAST_PORT), host=HOST, end_slots=True)
    program.begin()
    session = Session(url=url, node=node, host=HOST, version="simulated-1", token=lambda: token, program=program)
    try:
        await session.run()
    finally:
        await program.close()
        state.close()


class Users:
    """Those who ask the models. `run` never returns."""

    def __init__(self, api: Api, *, rng: random.Random, pause: Callable[[], float] = lambda: WAVE_SECONDS) -> None:
        self._api = api
        self._rng = rng
        self._pause = pause
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Create the models, then ask one after the other, more at once now and then."""
        await self._make_models()
        while True:
            for model in self._rng.sample(MODELS, len(MODELS)):
                for _ in range(self._rng.randint(2, 7)):
                    task = asyncio.create_task(self._ask(model["name"]))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
                await asyncio.sleep(self._pause() * self._rng.uniform(0.6, 1.4))

    async def _make_models(self) -> None:
        for model in MODELS:
            while True:
                try:
                    made = await self._api.create_model(model)
                except ServerAway:
                    await self._api.until_alive()
                    continue
                except Refused as refused:
                    name, why = model["name"], str(refused)
                    log.error("inference.model_refused", model=name, why=why)  # noqa: TRY400 - no traceback needed
                else:
                    log.info("inference.model", model=model["name"], made=made)
                break

    async def _ask(self, model: str) -> None:
        """One request; it may wait for its slot."""
        await asyncio.sleep(self._rng.uniform(0, THINK_SECONDS))
        tokens = self._rng.randint(20, 150)
        try:
            await self._api.chat(model, tokens=tokens)
        except Refused as refused:
            log.warning("inference.refused", model=model, status=refused.status, why=refused.detail[:200])
        except ServerAway as away:
            log.warning("inference.server_away", why=str(away))
