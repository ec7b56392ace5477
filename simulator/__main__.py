"""`python -m simulator`: registers the simulated fleet at a running gpuplane and keeps it alive.

Reads `GPUPLANE_DATA_DIR` (for `credentials.json`) and `GPUPLANE_SIMULATE_NODES`. Waits for the server, registers the
nodes, then agents send samples and pods come and go until SIGTERM or SIGINT. Invariants: it never ends because the
server is away; all agents share one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from simulator.agents import Agent, Crowd
from simulator.api import Api, Refused, ServerAway, wait_for_server
from simulator.fleet import SimNode, make_fleet
from simulator.occupancy import Occupancy
from simulator.queues import QueuedTeams
from simulator.signals import Signals
from simulator.workload import Workload

SEED: Final = 20260917
REGISTRATIONS_AT_ONCE: Final = 2
FAULT_EVERY_SECONDS: Final = 150.0
FAULT_SECONDS: Final = 75.0
FAULTS: Final = ("Xid 79: GPU has fallen off the bus", "Xid 94: contained ECC error", "Xid 63: row remapping pending")

log = structlog.get_logger(__name__)


async def register(api: Api, fleet: Sequence[SimNode]) -> dict[str, str]:
    """PUT every node's inventory; tokens of the nodes' agents, by node. Waits while the server is away."""
    todo = list(reversed(fleet))
    tokens: dict[str, str] = {}

    async def work() -> None:
        while todo:
            node = todo.pop()
            try:
                await api.put_inventory(node.name, node.inventory())
                tokens[node.name] = await api.agent_token(node.name)
            except ServerAway as away:
                log.warning("simulator.server_away", why=str(away))
                todo.append(node)
                await api.until_alive()
            except Refused as refused:
                # no traceback needed
                log.error("simulator.node_refused", node=node.name, why=str(refused))  # noqa: TRY400

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(REGISTRATIONS_AT_ONCE)))
    log.info("simulator.registered", nodes=len(fleet), seconds=round(time.monotonic() - began, 1))
    return tokens


async def measure(signals: Signals) -> None:
    """Step the signals once a second."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        signals.step(now - before)
        before = now


async def inject_faults(agents: dict[str, Agent], occupancy: Occupancy, signals: Signals, rng: random.Random) -> None:
    """Make a free GPU unhealthy for a while, now and then."""
    while True:
        await asyncio.sleep(FAULT_EVERY_SECONDS * rng.uniform(0.5, 1.5))
        uuid = rng.choice(occupancy.free_gpus() or [""])
        agent = agents.get(uuid)
        if agent is None:
            continue
        signals.set_faulty(uuid, faulty=True)
        agent.report_health(uuid, rng.choice(FAULTS))
        await asyncio.sleep(FAULT_SECONDS)
        signals.set_faulty(uuid, faulty=False)
        agent.report_health(uuid, "")


async def simulate(data_dir: Path, nodes: int) -> None:
    """Run the fleet until cancelled."""
    fleet = make_fleet(nodes)
    credentials = await wait_for_server(data_dir / "credentials.json")
    signals = Signals(fleet, seed=SEED)
    occupancy = Occupancy(signals, fleet=fleet)
    crowd = Crowd(len(fleet))
    agents: dict[str, Agent] = {}
    async with Api(credentials) as api:
        tokens = await register(api, fleet)
        # unseeded: a second run must not repeat pod UIDs
        workload = Workload(api, occupancy, nodes=[node.name for node in fleet], rng=random.Random())  # noqa: S311
        queued = QueuedTeams(api, nodes=[node.name for node in fleet], rng=random.Random())  # noqa: S311 - no secret
        async with asyncio.TaskGroup() as group:
            group.create_task(measure(signals))
            for index, node in enumerate(fleet):
                agent = Agent(
                    node,
                    index,
                    signals=signals,
                    crowd=crowd,
                    url=credentials.url,
                    token=tokens.get(node.name, ""),
                    phase=index / len(fleet),
                )
                agents.update(dict.fromkeys(node.uuids, agent))
                group.create_task(agent.run())
            group.create_task(workload.run())
            group.create_task(queued.run())
            group.create_task(inject_faults(agents, occupancy, signals, random.Random(SEED)))  # noqa: S311 - no secret


async def until_stopped(data_dir: Path, nodes: int) -> None:
    """Run `simulate` until a signal, then end it cleanly."""
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(simulate(data_dir, nodes))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("simulator.stopped")


def configure_logs(level: str) -> None:
    """Log as the other processes do, at a GPUPLANE_LOG_LEVEL."""
    known = logging.getLevelNamesMapping()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=False, pad_event_to=0, pad_level=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(known.get(level.upper(), logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def main() -> int:
    """Run the command line; exit code 2 for an invalid variable."""
    configure_logs(os.environ.get("GPUPLANE_LOG_LEVEL", "").strip() or "info")
    data_dir = Path(os.environ.get("GPUPLANE_DATA_DIR", "").strip() or "var").expanduser()
    given = os.environ.get("GPUPLANE_SIMULATE_NODES", "").strip() or "64"
    try:
        nodes = int(given)
        make_fleet(nodes)
    except ValueError as error:
        sys.stderr.write(f"GPUPLANE_SIMULATE_NODES={given!r}: {error}\n")
        return 2
    asyncio.run(until_stopped(data_dir, nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
