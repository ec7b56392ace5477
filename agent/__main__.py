"""`python -m agent`: the program on a GPU node, which reports the node's devices to gpuplane.

Every option has an environment variable, which the chart's DaemonSet sets. Exit code 2 for invalid options; later
errors are logged and survived.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from agent.checkpoint import CHECKPOINT
from agent.outbox import Outbox
from agent.program import Program
from agent.session import Session
from agent.sources import BadSource, Source, SourceAway, open_source
from agent.sources.recorded import Recorder

VERSION = "1"

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    given = _parsed(arguments)
    try:
        source = open_source(given.source, node=given.node, sys=given.sys)
    except (BadSource, SourceAway) as error:
        sys.stderr.write(f"agent: --source {given.source}: {error}\n")
        return 2
    if given.record:
        source = Recorder(source, given.record)
    try:
        token = _token(given.token_file)
    except OSError as error:
        sys.stderr.write(f"agent: the token cannot be read: {error}\n")
        return 2
    return asyncio.run(_run(given, source, token))


async def _run(given: argparse.Namespace, source: Source, token: Callable[[], str]) -> int:
    outbox = Outbox()
    checkpoint = given.checkpoint if given.checkpoint.name else None
    program = Program(node=given.node, source=source, outbox=outbox, checkpoint=checkpoint)
    session = Session(
        url=given.server,
        node=given.node,
        version=VERSION,
        token=token,
        outbox=outbox,
        ca_file=given.ca_file,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    work = [asyncio.create_task(program.run()), asyncio.create_task(session.run())]
    waiting = asyncio.create_task(stopped.wait())
    code = 0
    try:
        done, _ = await asyncio.wait({*work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a defect ends the program, which is then restarted
    except Exception:  # logged with its traceback; the driver is closed before the program ends
        log.exception("agent.failed")
        code = 1
    finally:
        for task in (*work, waiting):
            task.cancel()
        await asyncio.gather(*work, waiting, return_exceptions=True)
    if not await program.close():
        log.error("agent.stopped_while_the_driver_hangs")
        sys.stdout.flush()
        sys.stderr.flush()
        # a normal exit would wait for the thread in the driver, possibly for ever
        os._exit(code)
    log.info("agent.stopped")
    return code


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    environment = os.environ
    parser = argparse.ArgumentParser(prog="python -m agent", description="reports a GPU node to gpuplane")
    parser.add_argument(
        "--node", default=environment.get("NODE_NAME") or socket.gethostname(), help="name of the node (NODE_NAME)"
    )
    parser.add_argument(
        "--server", default=environment.get("GPUPLANE_URL", "http://127.0.0.1:8000"), help="gpuplane (GPUPLANE_URL)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        default=environment.get("GPUPLANE_TOKEN_FILE") or None,
        help="file with the token, read for each session (GPUPLANE_TOKEN_FILE); without it GPUPLANE_TOKEN is used",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        default=environment.get("GPUPLANE_CA_FILE") or None,
        help="PEM file of the CA of an https:// server, read for each session (GPUPLANE_CA_FILE)",
    )
    parser.add_argument(
        "--source",
        default=environment.get("GPUPLANE_AGENT_SOURCE", "nvml"),
        help="nvml, simulated:<machine> or recorded:<file> (GPUPLANE_AGENT_SOURCE)",
    )
    parser.add_argument("--record", type=Path, help="write everything that the source says to this file")
    parser.add_argument(
        "--sys", type=Path, default=Path("/host/sys") if Path("/host/sys").is_dir() else Path("/sys"), help="sysfs"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="the kubelet's device checkpoint; empty: leave it alone"
    )
    return parser.parse_args(arguments)


def _token(path: Path | None) -> Callable[[], str]:
    """A function that returns the token. Raises OSError where the file cannot be read now."""
    if path is None:
        return lambda: os.environ.get("GPUPLANE_TOKEN", "")
    path.read_bytes()
    return lambda: path.read_text(encoding="utf-8").strip()


if __name__ == "__main__":
    sys.exit(main())
