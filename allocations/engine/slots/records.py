"""What a plan of slots is made from, and what comes out. Memory in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from allocations.engine.snapshot import Snapshot


class Runtime(StrEnum):
    """The program that a slot is."""

    VLLM = "vllm"
    OLLAMA = "ollama"
    LLAMACPP = "llamacpp"
    SIMULATED = "simulated"


class SlotState(StrEnum):
    """The states of a slot, in their order."""

    PLANNED = "planned"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


ON_THE_WAY: Final = frozenset({SlotState.PLANNED, SlotState.STARTING})
KEPT_WARM: Final = ON_THE_WAY | {SlotState.READY}
"""States that count for `keep_warm`."""
GPU_COUNTS: Final = (1, 2, 4, 8)


class SlotModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `memory`: on one GPU, 0 where it is not given; `memory_per_gpu` and `estimates`: number of GPUs → bytes
    on each. `unknown`: why the memory is not known, for a reason. `parallel`: requests at once in one slot.
    `heads`: n GPUs must divide them, 0: any number will do.
    """

    name: str
    runtime: Runtime
    memory: int = 0
    memory_per_gpu: Mapping[int, tuple[int, ...]] = {}
    estimates: Mapping[int, tuple[int, ...]] = {}
    unknown: str = ""
    parallel: int = 4
    heads: int = 0
    gpu_counts: tuple[int, ...] = GPU_COUNTS
    idle_seconds: int = 300
    keep_warm: int = 0
    selector: Mapping[str, str] = {}


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """A program on a node that starts slots. `models`: on its disk; `measured`: bytes by minor of the GPU; `only`: the
    models that it can start, None: any of its runtimes; `slots_most`: slots that it may have, 0: any number.
    """

    node: str
    runtimes: frozenset[str]
    models: frozenset[str] = frozenset()
    measured: Mapping[int, int] = {}
    only: frozenset[str] | None = None
    slots_most: int = 0


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot as it is. `gpus`: minors, `memory`: what it claims of each. `active`: requests in it; `idle_seconds`:
    since it became ready or since its last request. `runtime` empty, `parallel` 0: the model's.
    """

    id: str
    model: str
    runner: str
    gpus: tuple[int, ...]
    memory: tuple[int, ...]
    lora: str = ""
    state: SlotState = SlotState.READY
    active: int = 0
    idle_seconds: int = 0
    runtime: str = ""
    parallel: int = 0

    @property
    def holds(self) -> bool:
        """Whether its memory counts."""
        return self.state != SlotState.STOPPED


class SlotRequest(msgspec.Struct, frozen=True):
    """A request for a model. Requests are in the order in which they arrived."""

    id: str
    model: str
    lora: str = ""
    priority: int = 0


class SlotInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input. `snapshot`: the ledger, slots included; `labels`: of each node; `held_by_pods`: device id → bytes
    that running pods claim, which are part of what is measured.
    """

    snapshot: Snapshot
    labels: Mapping[str, Mapping[str, str]]
    models: tuple[SlotModel, ...] = ()
    runners: tuple[Runner, ...] = ()
    slots: tuple[Slot, ...] = ()
    requests: tuple[SlotRequest, ...] = ()
    held_by_pods: Mapping[int, int] = {}


class NewSlot(msgspec.Struct, frozen=True):
    """A slot to start. `gpus`: minors ascending, `memory`: what it claims of each; `evicts`: slots that have to be gone
    first, those idle longest first.
    """

    id: str
    model: str
    lora: str
    runner: str
    gpus: tuple[int, ...]
    memory: tuple[int, ...]
    evicts: tuple[str, ...]


class Served(msgspec.Struct, frozen=True):
    """What becomes of a request: its slot, or why it waits."""

    id: str
    slot: str | None
    reason: str


class Unkept(msgspec.Struct, frozen=True):
    """Slots that `keep_warm` lacks and that cannot be planned."""

    model: str
    missing: int
    reason: str


class SlotDecision(msgspec.Struct, frozen=True):
    """Slots in the order of planning; requests in the order of arrival."""

    slots: tuple[NewSlot, ...]
    requests: tuple[Served, ...]
    unkept: tuple[Unkept, ...] = ()
