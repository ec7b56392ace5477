"""States of slots, runners and requests, and the moves between them. Who makes each move: docs/inference.md."""

from collections.abc import Mapping
from typing import Final

from django.db.models import TextChoices


class ModelRuntime(TextChoices):
    """The program that a slot is; the same values as the plan's `allocations.engine.slots.records.Runtime`."""

    VLLM = "vllm", "vLLM"
    OLLAMA = "ollama", "Ollama"
    LLAMACPP = "llamacpp", "llama.cpp"
    SIMULATED = "simulated", "Simulated"


class KvKind(TextChoices):
    """How keys and values are kept, for the estimate."""

    F16 = "f16", "f16"
    Q8_0 = "q8_0", "q8_0"
    Q4_0 = "q4_0", "q4_0"


class State(TextChoices):
    """Of a slot: planned → starting → ready → draining → stopped, or failed, which ends in stopped as well."""

    PLANNED = "planned", "Planned"
    STARTING = "starting", "Starting"
    READY = "ready", "Ready"
    DRAINING = "draining", "Draining"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"


WANTED: Final = (State.PLANNED, State.STARTING, State.READY)
"""Slots that the runner is to run."""
UNWANTED: Final = (State.DRAINING, State.FAILED)
"""Slots whose process is to go; they serve nobody and hold their memory."""
HOLDING: Final = (*WANTED, *UNWANTED)
"""Slots that hold memory, or wait for it."""

EDGES: Final[Mapping[State, frozenset[State]]] = {
    State.PLANNED: frozenset({State.STARTING, State.READY, State.DRAINING, State.FAILED, State.STOPPED}),
    State.STARTING: frozenset({State.READY, State.DRAINING, State.FAILED}),
    State.READY: frozenset({State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.STOPPED}),
    State.FAILED: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
}
"""Every move. `stopped` says that the process is gone, or never was; a report may skip a state that it did not see."""


class RunnerState(TextChoices):
    """Whether the runner is heard of."""

    CONNECTED = "connected", "Connected"
    SILENT = "silent", "Silent"
    FAILED = "failed", "Failed"


RUNNER_EDGES: Final[Mapping[RunnerState, frozenset[RunnerState]]] = {
    RunnerState.CONNECTED: frozenset({RunnerState.SILENT, RunnerState.FAILED}),
    RunnerState.SILENT: frozenset({RunnerState.CONNECTED, RunnerState.FAILED}),
    RunnerState.FAILED: frozenset({RunnerState.CONNECTED}),
}


class RequestState(TextChoices):
    """Of an inference request."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    REFUSED = "refused", "Refused"


REQUEST_OPEN: Final = (RequestState.WAITING, RequestState.RUNNING)
_REQUEST_ENDS: Final = (RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED, RequestState.REFUSED)
REQUEST_EDGES: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    RequestState.WAITING: frozenset({RequestState.RUNNING, *_REQUEST_ENDS}),
    RequestState.RUNNING: frozenset({RequestState.WAITING, *_REQUEST_ENDS}),
    **dict.fromkeys(_REQUEST_ENDS, frozenset[RequestState]()),
}
"""A running request waits again where its slot is lost before the first byte was sent. The gateway knows how a request
ended whatever the row says: it may have taken the request to another slot meanwhile.
"""
