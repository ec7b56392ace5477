"""`python -m simulator`: a simulated cluster for a running gpuplane.

Reads `GPUPLANE_DATA_DIR` (for `credentials.json`) and `GPUPLANE_SIMULATE_NODES`. Serves the cluster's API at once, by
the kubeconfig that it writes; waits for gpuplane, registers the nodes, then agents send samples and pods and nodes come
and go until SIGTERM or SIGINT. Invariants: it never ends because gpuplane is away; everything shares one event loop.
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
from simulator.cluster.journal import Journal
from simulator.cluster.server import ApiServer, open_listener, serve
from simulator.controllers import nodes_make, run_controllers
from simulator.fleet import FOR_MODELS, FOR_PODS, SimNode, make_fleet
from simulator.inference import Users, run_runner
from simulator.node_agents import GrownNodes
from simulator.occupancy import Occupancy
from simulator.queues import QueuedTeams
from simulator.signals import Meters, Signals
from simulator.waves import CREWS, Waves
from simulator.workload import Workload

SEED: Final = 20260917
REGISTRATIONS_AT_ONCE: Final = 2
FAULT_EVERY_SECONDS: Final = 150.0
FAULT_SECONDS: Final = 75.0
FOLDER: Final = "simulator"
"""In the data folder: the cluster's kubeconfig and journal."""
KUBECONFIG: Final = "kubeconfig"
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
                why = str(refused)
                log.error("simulator.node_refused", node=node.name, why=why)  # noqa: TRY400 - no traceback needed

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(REGISTRATIONS_AT_ONCE)))
    log.info("simulator.registered", nodes=len(fleet), seconds=round(time.monotonic() - began, 1))
    return tokens


async def measure(meters: Meters) -> None:
    """Step the signals once a second."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        meters.step(now - before)
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
    """Run cluster and fleet until cancelled."""
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fleet = make_fleet(nodes)
    with Journal.opened(folder / "cluster.jsonl") as store:
        nodes_make(store, fleet)
        listener, address = open_listener(folder / KUBECONFIG)
        server = ApiServer(store, token=address.token)
        log.info("cluster.serves", port=address.port, nodes=nodes)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(server, listener))
            group.create_task(run_controllers(store, random.Random()))  # noqa: S311 - no secret
            group.create_task(run_fleet(data_dir, fleet, server))


async def run_fleet(data_dir: Path, fleet: Sequence[SimNode], server: ApiServer) -> None:
    """Agents and users, once gpuplane is there."""
    store = server.store
    credentials = await wait_for_server(data_dir / "credentials.json")
    signals = Signals(tuple(fleet), seed=SEED)
    meters = Meters(signals)
    with_runners = [node for node in fleet if node.use == FOR_MODELS]
    for_pods = [node for node in fleet if node.use == FOR_PODS]
    occupancy = Occupancy(meters, fleet=fleet, for_pods=for_pods)
    crowd = Crowd(len(fleet))
    agents: dict[str, Agent] = {}
    names = [node.name for node in for_pods]
    async with Api(credentials) as api:
        tokens = await register(api, fleet)
        # unseeded: a second run must not repeat pod UIDs
        workload = Workload(api, store, occupancy, nodes=names, rng=random.Random())  # noqa: S311 - no secret
        queued = QueuedTeams(api, store, nodes=names, rng=random.Random())  # noqa: S311 - no secret
        grown = GrownNodes(store, server.tokens, meters, occupancy, url=credentials.url)
        async with asyncio.TaskGroup() as group:
            group.create_task(measure(meters))
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
            group.create_task(grown.run())
            group.create_task(workload.run())
            group.create_task(queued.run())
            for crew in CREWS:
                waves = Waves(api, store, occupancy, crew=crew, rng=random.Random())  # noqa: S311 - no secret
                group.create_task(waves.run())
            for node in with_runners:
                token, folder = tokens.get(node.name, ""), data_dir / "runners"
                group.create_task(run_runner(node.name, url=credentials.url, token=token, folder=folder))
            if with_runners:
                group.create_task(Users(api, rng=random.Random(SEED)).run())  # noqa: S311 - no secret
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
