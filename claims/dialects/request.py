"""The one type that every dialect is parsed into, and the answers a parse can give.

Called by the dialects (which build requests), by `allocations.engine` (which serves them) and by
the ledger (which stores them as JSON). Kept true here: an ask is for at least one device; amounts
are per device; `whole` means the device has one holder (DESIGN §3, Amounts).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from claims.dialects.steps import Steps

CORE_WHOLE = 100
"""Core percent of one whole device."""


class Policy(StrEnum):
    """How devices are chosen between nodes (CLAIM-5)."""

    NONE = "none"
    CONTIGUOUS = "contiguous"
    BINPACK = "binpack"
    SPREAD = "spread"


class SharePolicy(StrEnum):
    """Which device of a node a share goes to: the fullest that fits, or the emptiest."""

    GPUPACK = "gpupack"
    GPUSPREAD = "gpuspread"


class Dialect(StrEnum):
    """Where a request came from; decides how the result is written back."""

    GPUCLAIM = "gpuclaim"
    NATIVE = "native"
    KOORDINATOR = "koordinator"
    KAI = "kai"
    HAMI = "hami"
    REST = "rest"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which devices of its type an ask will have, besides those with room for it. Whatever is empty rules nothing out.

    `uuids`: one of these; `not_uuids`: none of these. `models`, `not_models`: parts of a model's name, in any case. `memory_least`:
    bytes of the whole device. `one_numa`: all devices of the ask at one NUMA node, which has to be known.
    """

    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    memory_least: int = 0
    one_numa: bool = False

    def permit(self, *, uuid: str, model: str, memory_total: int) -> bool:
        """Whether this device may be given."""
        named = (not self.uuids or uuid in self.uuids) and uuid not in self.not_uuids
        return named and self.permit_model(model) and memory_total >= self.memory_least

    def permit_model(self, model: str) -> bool:
        """Whether devices of this model may be given."""
        name = model.casefold()
        wanted = not self.models or any(part.casefold() in name for part in self.models)
        return wanted and not any(part.casefold() in name for part in self.not_models)


class DeviceAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """`count` devices of one type, each with the same amounts.

    Exactly one of these shapes:
    - whole: `core_percent`, `memory_bytes` and `memory_ratio` all None;
    - share: `core_percent` 0..100 and at most one of `memory_bytes` (bytes) and `memory_ratio`
      (percent 1..100 of the memory of the device chosen, rounded down to bytes). Neither: core only.
    """

    type: str
    count: int
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_ratio: int | None = None
    models: tuple[str, ...] = ()
    limits: Limits | None = None
    container: str = ""
    """The container whose ask this is, where a dialect plans each by itself."""
    given: tuple[int, ...] = ()
    """Minors that it was given: told by the engine where several asks of a request are for one type, and ignored by it."""
    steps: Steps = Steps(0, 0)
    """When the container runs: asks with a step in common are served at once, others may have the same room one after
    another.
    """

    @property
    def whole(self) -> bool:
        """Whether each device is taken with one holder."""
        return self.core_percent is None and self.memory_bytes is None and self.memory_ratio is None


class Joint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Devices of these types are to be under the same PCIe switches: wherever possible, or `required` (DEV-10)."""

    types: tuple[str, ...]
    required: bool = False


class DeviceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod, or a REST client, asks for. Asks sorted by type, gpu first; several of one type where containers are planned one by one."""

    asks: tuple[DeviceAsk, ...]
    policy: Policy = Policy.NONE
    policy_strict: bool = False
    share: SharePolicy = SharePolicy.GPUPACK
    own_share: bool = False
    """The pod says itself how its shares go to devices: neither the setting nor `policy` decides it."""
    dialect: Dialect = Dialect.GPUCLAIM
    key_prefix: str = ""
    """Resource prefix the pod used (`kubernetes.io`, `koordinator.sh`), for writing the result back."""
    claim: str = ""
    """Name of the GpuClaim in the pod's namespace, empty for other dialects."""
    ttl_seconds: int | None = None
    uuids: bool = False
    """The pod's NVIDIA_VISIBLE_DEVICES comes from our annotation too, so the env value holds UUIDs (DESIGN §4), and no kubelet may choose."""
    joint: Joint | None = None
    by_kubelet: bool = False
    """The kubelet chooses the devices: told by the engine of the node that it chose, and ignored by it."""
    ignored: tuple[str, ...] = ()
    """What the pod has by which other schedulers would decide and the engine does not (`claims.dialects.ignored`)."""
    containers: tuple[str, ...] = ()
    """The pod's containers, init containers first, where the result is written for each."""

    def under(self, share: SharePolicy) -> DeviceRequest:
        """The request under the share policy of the fleet, unless the pod names its own."""
        return self if self.own_share or self.share is share else msgspec.structs.replace(self, share=share)

    @property
    def to_emptiest(self) -> bool:
        """Whether shares go to the emptiest device of a node instead of the fullest."""
        return self.share is SharePolicy.GPUSPREAD or (self.policy is Policy.SPREAD and not self.own_share)

    @property
    def whole_native(self) -> bool:
        """Whether it is for whole GPUs by `nvidia.com/gpu`, whichever."""
        return self.dialect is Dialect.NATIVE and all(ask.whole and ask.limits is None for ask in self.asks)

    @property
    def for_kubelet(self) -> bool:
        """Whether a kubelet may choose the devices, by its device plugin: in a pod that sees what that one tells it, not what we do."""
        return self.whole_native and not self.uuids

    @property
    def devices_most(self) -> int:
        """How many devices the pod may run with, whoever gave them: Koordinator gives a joint request as many NICs as its GPUs have switches."""
        first, *joined = self.joint.types if self.joint is not None else ("",)
        switches = sum(ask.count for ask in self.asks if ask.type == first)
        return sum(max(ask.count, switches) if ask.type in joined else ask.count for ask in self.asks)

    @property
    def several(self) -> bool:
        """Whether several asks are for one device type."""
        return len({ask.type for ask in self.asks}) < len(self.asks)

    @property
    def steps(self) -> int:
        """How many steps there are in which different asks are served."""
        return 1 + max((ask.steps.last for ask in self.asks), default=0)

    @property
    def shares(self) -> bool:
        """Whether any ask is for less than whole devices."""
        return any(not ask.whole for ask in self.asks)


class Refusal(msgspec.Struct, frozen=True):
    """A pod that asks for devices in a way that cannot be served, with the rule it broke.

    `rule` is a short stable identifier (`claim-missing`, `gpu-core-alone`, …), `reason` a sentence
    that a person can act on, without node names (DESIGN §4). `field` names what to change.
    """

    rule: str
    reason: str
    field: str = ""


Parsed = DeviceRequest | Refusal | None
"""A parse answers with a request, a refusal, or None: the pod asks for no devices."""
