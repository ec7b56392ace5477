"""The simulator's API server in a thread of its own, with its store, for tests that call it over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from simulator.cluster.server import ApiServer, open_listener, serve
from simulator.cluster.store import Store

T = TypeVar("T")


class SimulatedCluster:
    """`run` calls a function in the thread that the store belongs to."""

    def __init__(self, kubeconfig: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.kubeconfig = kubeconfig
        self.store = Store()
        self._loop = loop

    def run(self, function: Callable[[], T]) -> T:
        """What the function returns."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=30)


@contextmanager
def simulated_cluster(folder: Path) -> Iterator[SimulatedCluster]:
    """One that runs until the end of the context."""
    loop = asyncio.new_event_loop()
    cluster = SimulatedCluster(folder / "kubeconfig", loop)
    listener, address = open_listener(cluster.kubeconfig)
    serving = loop.create_task(serve(ApiServer(cluster.store, token=address.token), listener))

    def until_stopped() -> None:
        try:
            loop.run_until_complete(serving)
        except asyncio.CancelledError:
            loop.run_until_complete(loop.shutdown_asyncgens())

    thread = threading.Thread(target=until_stopped, name="simulated-cluster")
    thread.start()
    try:
        yield cluster
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()
