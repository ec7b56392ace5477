"""The product's own web process with floors added: what the same server costs when it answers a constant.

Started as `python -m tests.bench.serving` in place of `python -m gpuplane.serve`. `POST /bench/floor/<n>`
reads the whole body and answers n bytes of JSON, through the same door, event loop and functions for
reading and answering; `POST /bench/commit/<n>` first commits one event in a thread; `GET /bench/memory`
says what this process occupies. Kept true: nothing of the
product is changed, and a request to any other path takes the product's way after one comparison.
"""

from __future__ import annotations

import gc
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from gpuplane.doors import App, Receive, Scope, Send

FLOOR = "/bench/floor/"
COMMIT = "/bench/commit/"
MEMORY = "/bench/memory"


def with_floor(application: App) -> App:
    """The application, and the paths of the bench."""
    from gpuplane.doors.answers import send_json
    from gpuplane.doors.bodies import read_body
    from gpuplane.doors.threads import in_thread, workers

    threads = workers("bench")

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith("/bench/"):
            await application(scope, receive, send)
        elif path == MEMORY:
            await send_json(send, 200, orjson.dumps(memory_bytes()))
        else:
            await read_body(scope, receive, limit=1 << 30)
            if path.startswith(COMMIT):
                await in_thread(threads, commit_one)
            await send_json(send, 200, constant(int(path.rpartition("/")[2])))

    return served


def commit_one() -> None:
    """The least that is lasting: one event in a transaction of its own."""
    from django.db import transaction

    from audit.choices import Kind
    from audit.services import record

    with transaction.atomic():
        record(kind=Kind.ALLOCATION_HELD, message="bench", actor="bench", now=datetime.now(UTC))


def constant(size: int) -> bytes:
    """A JSON string of `size` bytes, made once."""
    if size not in _constants:
        _constants[size] = b'"' + b"x" * max(size - 2, 0) + b'"'
    return _constants[size]


_constants: dict[int, bytes] = {}


def memory_bytes() -> dict[str, int]:
    """`rss` and `pss` of this process, in bytes, after a collection of garbage."""
    gc.collect()
    found = {"rss": 0, "pss": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.lower() in found:
            found[name.lower()] = int(rest.split()[0]) * 1024
    return found


def main() -> int:
    """`gpuplane.serve` with the application wrapped."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from gpuplane import asgi, serve

    asgi.application = with_floor(asgi.application)  # type: ignore[assignment]  # serve only calls it
    return serve.main()


if __name__ == "__main__":
    sys.exit(main())
