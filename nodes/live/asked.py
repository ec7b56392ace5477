"""All nodes' latest samples for a view, which runs in a thread while they belong to the event loop.

Called by pages and REST.
"""

from __future__ import annotations

from collections.abc import Mapping

from asgiref.sync import async_to_sync

from nodes.live.flush import read_latest
from nodes.live.samples import SampleView


def latest_for(request: object) -> Mapping[str, SampleView]:
    """Read in the event loop, to which the table belongs, where the server has one: then the request, Django's or DRF's, has an ASGI scope."""
    if not hasattr(request, "scope"):
        return read_latest()
    return async_to_sync(_read)()


async def _read() -> Mapping[str, SampleView]:
    return read_latest()
