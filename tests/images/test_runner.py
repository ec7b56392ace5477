"""The runner's image: its program starts and ends a slot for a server that speaks the runners' protocol."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from runner.protocol import Desired, Offer
from tests.images.container import environment, words
from tests.images.tools import Image
from tests.unit.runner.listening import Server, reported
from tests.unit.runner.machine import ask, wanted

HOST = f"127.79.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
ENDS_SECONDS = 60


@pytest.fixture
def image(images: dict[str, Image]) -> Image:
    """The runner's."""
    return images["gpuplane-runner"]


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file that the image's user may read."""
    tmp_path.chmod(0o755)
    path = tmp_path / "token"
    path.write_text("t")
    return path


def user_of(pid: int) -> str:
    """Whose process it is; empty where there is none."""
    status = Path(f"/proc/{pid}/status")
    return status.read_text().partition("\nUid:")[2].split()[0] if status.exists() else ""


async def test_a_slot(image: Image, token: Path) -> None:
    """SLOT-4c by the chart's command and its environment: a slot serves, and ends with the runner."""
    server = Server()
    async with server.listening():
        own = {
            "NODE_NAME": "n1",
            "GPUPLANE_URL": f"http://127.0.0.1:{server.port}",
            "GPUPLANE_TOKEN_FILE": str(token),
            "GPUPLANE_RUNNER_HOST": HOST,
            "GPUPLANE_RUNNER_PORTS": "21000-21999",
            "GPUPLANE_RUNNER_STATE": "/var/lib/gpuplane/runner",
        }
        process = await asyncio.create_subprocess_exec(
            *words(image, shown=[token.parent]),
            *("python", "-m", "runner", "--end-slots", "--simulated", "/tmp/memory"),
            env=environment(image, own),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            await server.until(lambda: server.of(Offer))
            assert server.heads[0] == ("/ws/runners/n1/", "Bearer t")
            assert [frame.runtimes for frame in server.of(Offer) if isinstance(frame, Offer)] == [["simulated"]]
            await server.want(Desired([wanted()]))
            await server.until(lambda: any(one.state == "ready" for one in reported(server)))
            answer = await ask(reported(server)[-1].address)
            assert answer.status_code == 200
            assert user_of(reported(server)[-1].pid) == "10001"
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = await asyncio.wait_for(process.communicate(), ENDS_SECONDS)
    assert process.returncode == 0, said.decode()
    assert user_of(max(one.pid for one in reported(server))) == ""


def test_its_python_is_its_own(image: Image) -> None:
    """A runtime finds `python3` as its own image has it; `python` alone is the runner's."""
    programs = {path.name for path in (image.root / "opt/gpuplane/venv/bin").iterdir()}
    assert programs == {"python"}
    assert shutil.which("python3", path=str(image.root / "usr/bin"))


def test_it_starts_whatever_its_base_starts(image: Image) -> None:
    """The entrypoint of a runtime's image, which would get the runner's command as arguments, is none of it."""
    assert not image.config.get("Entrypoint")
    assert image.config["Cmd"] == ["python", "-m", "runner"]


async def test_options_that_are_none(image: Image) -> None:
    """One sentence, and exit code 2."""
    process = await asyncio.create_subprocess_exec(
        *words(image),
        *("python", "-m", "runner", "--ports", "many"),
        env=environment(image, {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert (process.returncode, said) == (2, b"runner: --ports many: a range is first-last, such as 21000-21999\n")
