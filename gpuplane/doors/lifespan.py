"""What starts and stops with the web process: each entry offers `async start()` and `async stop()`.

Called by `gpuplane.asgi` once a process. Kept true: stops run in reverse, all of them, whatever one raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

import structlog

from gpuplane.doors import Receive, Send

log = structlog.get_logger(__name__)

MODULES: Sequence[str] = (
    "gpuplane.start.picture",
    "gpuplane.start.checkpoints",
    "gpuplane.start.definitions",
    "gpuplane.start.garbage",
    "gpuplane.start.access",
    "nodes.live.flush",
)
"""Modules with `start` and `stop`, in order."""


class Part(Protocol):
    """Something that lives as long as the process."""

    async def start(self) -> None:
        """Begin; called in the serving loop."""

    async def stop(self) -> None:
        """End; must return within seconds."""


async def serve_lifespan(receive: Receive, send: Send, modules: Sequence[str] = MODULES) -> None:
    """Answer the lifespan protocol."""
    running: list[Part] = []
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                for name in modules:
                    part = cast("Part", importlib.import_module(name))
                    await part.start()
                    running.append(part)
            except Exception as error:  # the server must be told, or it would serve half a process
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
