"""The request that every dialect is parsed into. The engine serves it, the ledger stores it as JSON.

Invariants: an ask is for at least one device; amounts are per device; a `whole` device has one holder.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from claims.dialects.steps import Steps
from kube.device_types import GPU, is_mig

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
    """Names of dialects that rules refer to; `rest`: a claim without a pod; `slot`: a running model's memory."""

    GPUCLAIM = "gpuclaim"
    NATIVE = "native"
    KOORDINATOR = "koordinator"
    KAI = "kai"
    HAMI = "hami"
    REST = "rest"
    SLOT = "slot"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices of its type that an ask allows; empty fields allow all.

    `models`, `not_models`: parts of a model's name, ignoring case. `memory_least`: bytes of the whole device.
    `one_numa`: all devices of the ask at one NUMA node, which has to be known.
    """

    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    memory_least: int = 0
    one_numa: bool = False

    def permit(self, *, uuid: str, model: str, memory_total: int) -> bool:
        """Whether this device is allowed."""
        named = (not self.uuids or uuid in self.uuids) and uuid not in self.not_uuids
        return named and self.permit_model(model) and memory_total >= self.memory_least

    @property
    def any_device(self) -> bool:
        """Whether it is all the same which of the node's devices of a model serve."""
        return not (self.uuids or self.not_uuids or self.one_numa)

    def permit_model(self, model: str) -> bool:
        """Whether devices of this model are allowed."""
        name = model.casefold()
        listed = not self.models or any(part.casefold() in name for part in self.models)
        return listed and not any(part.casefold() in name for part in self.not_models)


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
    """The container of the ask, where a dialect plans each container."""
    given: tuple[int, ...] = ()
    """Output of the engine: the minors of the ask, where several asks are for one type."""
    steps: Steps = Steps(0, 0)
    """When the container runs: asks without a common step may use the same amounts of a device."""

    @property
    def whole(self) -> bool:
        """Whether the devices are whole."""
        return self.core_percent is None and self.memory_bytes is None and self.memory_ratio is None


class Joint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Devices of these types are taken from under the same PCIe switches, if possible or `required` (DEV-10)."""

    types: tuple[str, ...]
    required: bool = False


class DeviceRequest(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """The request of a pod or a REST client.

    `asks` are sorted by type, gpu first; several are for one type where containers are planned one by one.
    """

    asks: tuple[DeviceAsk, ...]
    policy: Policy = Policy.NONE
    policy_strict: bool = False
    share: SharePolicy = SharePolicy.GPUPACK
    own_share: bool = False
    """`share` is the pod's own: neither the setting nor `policy` overrides it."""
    dialect: str = Dialect.GPUCLAIM
    """The name of the dialect, which decides how the result is written."""
    key_prefix: str = ""
    """The pod's resource prefix (`kubernetes.io`, `koordinator.sh`), for writing the result."""
    claim: str = ""
    """The GpuClaim in the pod's namespace, empty for other dialects."""
    ttl_seconds: int | None = None
    uuids: bool = False
    """NVIDIA_VISIBLE_DEVICES refers to our annotation, so its value holds UUIDs, and no kubelet may choose."""
    kubelet_gpus: bool = False
    """The pod's own `nvidia.com/gpu` would have a device plugin give it GPUs as well."""
    joint: Joint | None = None
    by_kubelet: bool = False
    """Output of the engine: the kubelet of the chosen node chooses the devices."""
    ignored: tuple[str, ...] = ()
    """What other schedulers would read of the pod, and the engine ignores (`claims.dialects.ignored`)."""
    containers: tuple[str, ...] = ()
    """The pod's containers, init containers first, where each has a result."""
    isolation: str = ""
    """What the containers' variables refer to, `mps` or `hami-core`: the result has their values."""
    resized: bool = False
    """Output of a resize: the amounts are no longer those that the pod asks for."""

    def under(self, share: SharePolicy) -> DeviceRequest:
        """The request with the share policy of the fleet, unless the pod has its own."""
        return self if self.own_share or self.share is share else msgspec.structs.replace(self, share=share)

    @property
    def to_emptiest(self) -> bool:
        """Whether shares go to the emptiest device of a node."""
        return self.share is SharePolicy.GPUSPREAD or (self.policy is Policy.SPREAD and not self.own_share)

    @property
    def whole_native(self) -> bool:
        """Whether it is for any whole GPUs by `nvidia.com/gpu`."""
        plain = all(ask.whole and ask.limits is None and not is_mig(ask.type) for ask in self.asks)
        return self.dialect == Dialect.NATIVE and plain

    @property
    def for_kubelet(self) -> bool:
        """Whether a kubelet may choose the devices, since no variable of the pod overrides its device plugin's."""
        return self.whole_native and not self.uuids

    @property
    def reservable(self) -> bool:
        """Whether a reservation pod can serve it where the kubelet chooses devices: GPUs alone, whichever they are."""
        return (
            self.dialect != Dialect.NATIVE
            and not self.kubelet_gpus
            and self.joint is None
            and not (self.policy is Policy.CONTIGUOUS and self.policy_strict)
            and all(ask.type == GPU and (ask.limits is None or ask.limits.any_device) for ask in self.asks)
        )

    @property
    def devices_most(self) -> int:
        """The most devices of the pod: Koordinator gives a joint request as many NICs as its GPUs have switches."""
        first, *joined = self.joint.types if self.joint is not None else ("",)
        switches = sum(ask.count for ask in self.asks if ask.type == first)
        return sum(max(ask.count, switches) if ask.type in joined else ask.count for ask in self.asks)

    @property
    def several(self) -> bool:
        """Whether several asks are for one device type."""
        return len({ask.type for ask in self.asks}) < len(self.asks)

    @property
    def steps(self) -> int:
        """The number of steps of the pod (`claims.dialects.steps`)."""
        return 1 + max((ask.steps.last for ask in self.asks), default=0)

    @property
    def shares(self) -> bool:
        """Whether any ask is for shares."""
        return any(not ask.whole for ask in self.asks)


class Refusal(msgspec.Struct, frozen=True):
    """Why a pod's request cannot be served.

    `rule`: a short stable identifier (`claim-missing`, `gpu-core-alone`, …). `reason`: a sentence for the user, without
    node names. `field`: the field to change.
    """

    rule: str
    reason: str
    field: str = ""


Parsed = DeviceRequest | Refusal | None
"""A request, a refusal, or None for a pod that requests no devices."""
