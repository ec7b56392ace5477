"""Checks the children: Redis by PING, web and the simulated cluster over HTTP, the worker by its canary."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
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


def failed_checks(url: str) -> list[str]:
    """What keeps `/livez` or `/readyz` from answering 200, with details; empty when it does."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):  # noqa: S310 - this machine's address
            return []
    except urllib.error.HTTPError as error:
        try:
            checks = json.loads(error.read())["checks"]
        except (ValueError, KeyError, OSError):
            return [f"status {error.code}"]
        failed = [f"{name}: {check['detail']}" for name, check in checks.items() if not check["ok"]]
        return failed or [f"status {error.code}"]
    except (OSError, ValueError) as error:
        return [f"no answer ({error})"]


def cluster_answers(kubeconfig: Path) -> bool:
    """Whether the simulated cluster's API server answers at the address of its kubeconfig."""
    try:
        server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{server}/readyz", timeout=TIMEOUT_SECONDS):  # noqa: S310 - this machine's address
            return True
    except (OSError, ValueError, LookupError):
        return False


def canary_age_seconds(data_dir: Path) -> float:
    """Seconds since the worker last ran the canary; infinite when it never has."""
    try:
        return time.time() - (data_dir / "run" / "canary").stat().st_mtime
    except FileNotFoundError:
        return float("inf")
