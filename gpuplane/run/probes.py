"""Asks the children how they are: Redis by PING, the web process by its health addresses, the worker by its canary."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

PAUSE_SECONDS = 0.2
TIMEOUT_SECONDS = 5.0


async def redis_answers(path: Path) -> bool:
    """Whether a server answers PING on the socket."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(b"PING\r\n")
                await writer.drain()
                return (await reader.readline()).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


@dataclass(frozen=True, slots=True)
class Health:
    """An answer of `/livez` or `/readyz`: `missing` names the checks that failed, with their details."""

    ok: bool
    missing: tuple[str, ...] = ()


async def health(url: str) -> Health:
    """Ask; no answer is not ok."""
    return await asyncio.to_thread(_health, url)


def _health(url: str) -> Health:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - our own address
            return Health(ok=answer.status == 200)
    except urllib.error.HTTPError as error:
        try:
            checks = json.loads(error.read())["checks"]
        except (ValueError, KeyError, OSError):
            return Health(ok=False, missing=(f"status {error.code}",))
        return Health(ok=False, missing=tuple(f"{n}: {c['detail']}" for n, c in checks.items() if not c["ok"]))
    except (OSError, ValueError) as error:
        return Health(ok=False, missing=(f"no answer ({error})",))


def canary_age_seconds(data_dir: Path) -> float:
    """Seconds since the worker last sang; infinite when it never has."""
    try:
        return time.time() - (data_dir / "run" / "canary").stat().st_mtime
    except FileNotFoundError:
        return float("inf")
