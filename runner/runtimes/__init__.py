"""The runtimes: how a slot becomes a command, an environment, and an address that answers once it is ready.

Used by `runner.slot_lifecycle`; one module a runtime. Invariants: a command is a list of arguments, and what a model
says never begins an option of ours; paths of models and adapters stay within the runner's folder of models; the
environment is made from names that are known, so nothing of the runner's own (its token) reaches a runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from runner.protocol import DesiredSlot

PASSED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
PASSED_PREFIXES: Final = ("HF_", "HUGGING_FACE_", "VLLM_", "OLLAMA_", "NCCL_", "NVIDIA_", "CUDA_", "GGML_", "LLAMA_")
"""Names and beginnings of names of variables that reach a runtime."""


class CannotStart(Exception):
    """The slot cannot be started as it was asked for; the text says why."""


class Step(msgspec.Struct, frozen=True):
    """A request to the runtime that comes before its slot is ready, such as loading the model."""

    path: str
    body: Mapping[str, Any]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a slot is reached and listens, and its folder."""

    host: str
    port: int
    folder: Path
    listen: str

    @property
    def address(self) -> str:
        """host:port where it is reached."""
        return joined(self.host, self.port)


class Runtime(Protocol):
    """One kind of program that a slot can be."""

    @property
    def name(self) -> str:
        """As a model names it."""

    def sources(self) -> list[str]:
        """The sources of models that are on this machine."""

    def launch(self, slot: DesiredSlot, place: Place) -> Launch:
        """How the slot is started. Reads the disk. Raises CannotStart."""

    def steps(self, slot: DesiredSlot) -> tuple[Step, ...]:
        """What is asked of the runtime once it answers, before the slot is ready; may be asked twice."""

    @property
    def health(self) -> str:
        """The path that answers below 400 once the runtime serves."""


def joined(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def base_environment() -> dict[str, str]:
    """The variables of this process that a runtime gets."""
    return {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}


def devices(slot: DesiredSlot, *, by_index: bool = False) -> dict[str, str]:
    """The variables that show a runtime its GPUs and no others: by UUID, or by the driver's index.

    Without a GPU it sees none.
    """
    uuids = [gpu.uuid for gpu in slot.gpus]
    shown = _indices(slot) if by_index else uuids
    return {"CUDA_VISIBLE_DEVICES": ",".join(shown), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def file_within(folder: Path | None, name: str, *, what: str) -> Path:
    """The file of this name, relative to the folder of models or a path in it. Raises CannotStart."""
    if folder is None:
        raise CannotStart(f"the {what} {name} is a file, and the runner was given no folder of models")
    root = folder.resolve()
    path = Path(os.path.realpath(root / name))  # unlike `resolve` it raises nothing for a link to itself
    if not path.is_relative_to(root):
        raise CannotStart(f"the {what} {name} is not in the runner's folder of models")
    if not path.exists():
        raise CannotStart(f"the {what} {name} is not on this machine")
    return path


def no_option(text: str, *, what: str) -> str:
    """The text, which is an argument by itself. Raises CannotStart for one that would be read as an option."""
    if not text or text.startswith("-"):
        raise CannotStart(f"{text!r} cannot be a {what}")
    return text


def _indices(slot: DesiredSlot) -> list[str]:
    """The driver's indices of the slot's GPUs, in PCI order; minors where there is no driver to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [str(gpu.minor) for gpu in slot.gpus]
    try:
        return [_index(pynvml, gpu.uuid) for gpu in slot.gpus]
    except pynvml.NVMLError as error:
        raise CannotStart(f"a GPU of the slot is not on this machine: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _index(driver: Any, uuid: str) -> str:
    """Its index; a MIG device has none, and is shown by its UUID."""
    if uuid.startswith("MIG-"):
        return uuid
    return str(driver.nvmlDeviceGetIndex(driver.nvmlDeviceGetHandleByUUID(uuid)))
