"""Starts and stops what runs beside requests in the web process.

Called by `gpuplane.application`. Invariants: all that were started are stopped, in reverse order, whatever one raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import structlog

from gpuplane.listeners import Receive, Send

log = structlog.get_logger(__name__)

MODULES: Sequence[str] = (
    "gpuplane.start.requests",
    "gpuplane.start.snapshot_loader",
    "gpuplane.start.queue_reader",
    "gpuplane.start.checkpoints",
    "gpuplane.start.definitions",
    "gpuplane.start.gc_tuning",
    "gpuplane.start.gateway",
    "gpuplane.start.subscriptions",
    "gpuplane.start.access",
    "nodes.live.flush",
)
"""Modules with `async start()` and `async stop()`, which returns within seconds; in order."""


async def serve_lifespan(receive: Receive, send: Send, modules: Sequence[str] = MODULES) -> None:
    """Answer the lifespan protocol: start the modules in the serving loop, and stop them."""
    running: list[Any] = []
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                for name in modules:
                    part: Any = importlib.import_module(name)
                    await part.start()
                    running.append(part)
            except Exception as error:  # or the server would serve half a process
                log.exception("web.start_failed")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            for part in reversed(running):
                try:
                    await part.stop()
                except Exception:  # the others must still stop
                    log.exception("web.stop_failed")
            await send({"type": "lifespan.shutdown.complete"})
            return
