"""`python -m runner`: the program on a GPU node that starts model runtimes for gpuplane.

Every option but `--token` has an environment variable. Exit code 2 for invalid options; later errors are logged and
survived. SIGTERM ends the runner alone: its slots go on, and are found again by the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from runner.program import Ports, Program, State, StateTaken
from runner.runtimes import Runtime
from runner.runtimes.llamacpp import LlamaCpp
from runner.runtimes.ollama import Ollama
from runner.runtimes.simulated import Simulated
from runner.runtimes.vllm import Vllm
from runner.session import Session

VERSION = "1"

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    given = _parsed(arguments)
    try:
        token = _token(given)
        ports = _ports(given.listen or given.host, given.ports)
        state = State.open(given.state)
    except (OSError, ValueError, StateTaken) as error:
        sys.stderr.write(f"runner: {error}\n")
        return 2
    try:
        return asyncio.run(_run(given, state, ports, token))
    finally:
        state.close()


async def _run(given: argparse.Namespace, state: State, ports: Ports, token: Callable[[], str]) -> int:
    program = Program(
        state, _runtimes(given), ports, host=given.host, listen=given.listen or "", end_slots=given.end_slots
    )
    program.begin()
    session = Session(
        url=given.url,
        node=given.node,
        host=given.host,
        version=VERSION,
        token=token,
        program=program,
        ca_file=given.ca_file,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    talking = asyncio.create_task(session.run())
    waiting = asyncio.create_task(stopped.wait())
    code = 0
    try:
        done, _ = await asyncio.wait({talking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a defect ends the program, which is then started again and finds its slots
    except Exception:  # logged with its traceback
        log.exception("runner.failed")
        code = 1
    finally:
        talking.cancel()
        waiting.cancel()
        await asyncio.gather(talking, waiting, return_exceptions=True)
        await program.close()
    log.info("runner.stopped")
    return code


def _runtimes(given: argparse.Namespace) -> dict[str, Runtime]:
    """The runtimes of this machine, by name."""
    found: list[Runtime] = []
    if vllm := given.vllm or shutil.which("vllm"):
        found.append(Vllm(vllm, given.models))
    if ollama := given.ollama or shutil.which("ollama"):
        found.append(Ollama(ollama, given.ollama_models))
    if given.llamacpp_python or importlib.util.find_spec("llama_cpp"):
        found.append(LlamaCpp(given.llamacpp_python or sys.executable, given.models))
    if given.simulated is not None:
        found.append(Simulated(given.simulated.resolve(), tuple(given.simulated_model)))
    return {runtime.name: runtime for runtime in found}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    environment = os.environ

    def text(name: str, default: str = "") -> str:
        return environment.get(name, "").strip() or default

    def path(name: str) -> Path | None:
        return Path(text(name)) if text(name) else None

    parser = argparse.ArgumentParser(prog="python -m runner", description="starts model runtimes for gpuplane")
    add = parser.add_argument
    add("--node", default=text("NODE_NAME", socket.gethostname()), help="name of the node (NODE_NAME)")
    add("--url", default=text("GPUPLANE_URL", "http://127.0.0.1:8000"), help="gpuplane (GPUPLANE_URL)")
    add("--token", default="", help="the token; others of this machine can see it, unlike GPUPLANE_TOKEN")
    add(
        "--token-file",
        type=Path,
        default=path("GPUPLANE_TOKEN_FILE"),
        help="file with the token, read for each session (GPUPLANE_TOKEN_FILE); without it GPUPLANE_TOKEN is used",
    )
    add(
        "--ca-file",
        type=Path,
        default=path("GPUPLANE_CA_FILE"),
        help="PEM file of the CA of an https:// server, read for each session (GPUPLANE_CA_FILE)",
    )
    add(
        "--state",
        type=Path,
        default=path("GPUPLANE_RUNNER_STATE") or Path("/var/lib/gpuplane/runner"),
        help="folder of this runner's slots (GPUPLANE_RUNNER_STATE)",
    )
    add(
        "--host",
        default=text("GPUPLANE_RUNNER_HOST", "127.0.0.1"),
        help="address at which gpuplane reaches slots (GPUPLANE_RUNNER_HOST)",
    )
    add("--listen", default=text("GPUPLANE_RUNNER_LISTEN"), help="address on which slots listen, where it is another")
    add("--ports", default=text("GPUPLANE_RUNNER_PORTS", "21000-21999"), help="their ports (GPUPLANE_RUNNER_PORTS)")
    add(
        "--models",
        type=Path,
        default=path("GPUPLANE_RUNNER_MODELS"),
        help="folder of models, GGUF files, and adapters in `loras` (GPUPLANE_RUNNER_MODELS)",
    )
    add("--vllm", default=text("GPUPLANE_RUNNER_VLLM"), help="path of vllm, where it is not in PATH")
    add("--ollama", default=text("GPUPLANE_RUNNER_OLLAMA"), help="path of ollama, where it is not in PATH")
    add("--ollama-models", type=Path, default=path("OLLAMA_MODELS"), help="its store (OLLAMA_MODELS)")
    add("--llamacpp-python", default=text("GPUPLANE_RUNNER_LLAMACPP"), help="a Python that has llama-cpp-python")
    add("--simulated", type=Path, help="offer the simulated runtime; the folder stands for the memory of GPUs")
    add("--simulated-model", action="append", default=[], help="a source that it says to have on disk")
    add("--end-slots", action="store_true", help="slots end with the runner, however it ends")
    return parser.parse_args(arguments)


def _ports(host: str, given: str) -> Ports:
    """The range. Raises ValueError."""
    first, _, last = given.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or not 0 < int(first) <= int(last or first) < 2**16:
        raise ValueError(f"--ports {given}: a range is first-last, such as 21000-21999")
    return Ports(host, int(first), int(last or first))


def _token(given: argparse.Namespace) -> Callable[[], str]:
    """A function that returns the token. Raises OSError where the file cannot be read now."""
    if given.token:
        return lambda: str(given.token)
    path: Path | None = given.token_file
    if path is None:
        return lambda: os.environ.get("GPUPLANE_TOKEN", "")
    path.read_bytes()
    return lambda: path.read_text(encoding="utf-8").strip()


if __name__ == "__main__":
    sys.exit(main())
