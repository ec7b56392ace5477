"""What a gateway reports to a round, and what it is told. `at`: seconds of the gateway's monotonic clock."""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec

from inference.choices import RequestState


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A request that came. `user`: name of its account; `token`: digest of its API token."""

    id: UUID
    model: str
    lora: str = ""
    priority: int = 0
    user: str = ""
    token: str = ""
    at: float


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is over, whether it waited or ran."""

    id: UUID
    model: str
    state: RequestState
    reason: str = ""
    tokens: int = 0
    first_byte_at: float | None = None
    at: float


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A running request that its slot did not take: it waits for another place. `tried`: slots before → when."""

    id: UUID
    model: str
    slot: str
    reason: str
    tried: dict[str, float] = {}
    at: float


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of the model may have a place by now."""

    model: str


Step = Arrival | Ending | Retry | Recheck


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The request runs, and this is where it is to be sent. `model_name`: what the runtime calls the model."""

    slot: str
    address: str
    model_name: str


class StepResult(StrEnum):
    """What became of a step that brought no place."""

    WAITS = "waits"
    UNKNOWN_MODEL = "unknown model"
    QUEUE_FULL = "queue full"
    OVER = "over"
    """The request has ended, or is not known."""


Outcome = Place | StepResult


class Started(msgspec.Struct, frozen=True):
    """A request that waited and has a place now."""

    request: UUID
    model: str
    gateway: str
    place: Place


class Round(msgspec.Struct, frozen=True):
    """Outcomes in the order of the steps, and the waiting requests that were started, of all gateways."""

    outcomes: list[Outcome]
    started: list[Started]
