"""The definition of a dialect; each dialect's module creates one, and `claims.dialects.registry` lists them.

Everything that differs between dialects is a field here. Invariants: a definition has no state; code outside a
dialect's module goes by the fields and not by its name, except for rules about one dialect alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kube.device_types import DEVICE_TYPES, PREFIXES, Dimension

if TYPE_CHECKING:
    from claims.dialects.adopted import AdoptedDevice
    from claims.dialects.claim_manifest import FindClaim
    from claims.dialects.grants import Placed
    from claims.dialects.request import DeviceRequest
    from kube.objects import Pod

RESOURCE_NAMES: Final = {
    f"{prefix}/{name}": (prefix, device_type, dimension)
    for prefix in PREFIXES
    for device_type in DEVICE_TYPES
    for dimension, name in device_type.dimensions()
}
"""Full resource name of the table of device types → (prefix, type, dimension)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod whose dialect is detected."""

    pod: Pod
    amounts: Mapping[str, int]
    """Requested amounts by full resource name; only those above 0."""

    @property
    def types(self) -> frozenset[str]:
        """Device types that are requested by names of the table."""
        return frozenset(RESOURCE_NAMES[name][1].type for name in self.amounts if name in RESOURCE_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """How the allocation annotation of the dialect's own scheduler is read."""

    key: str
    read: Callable[[Pod, DeviceRequest | None], list[AdoptedDevice]]
    """The devices; raises `claims.dialects.adopted.Malformed`. The request is the pod's, if known."""
    written_for: frozenset[str]
    """Dialects of the pods that the scheduler writes it on."""
    devices_most: Callable[[Pod, DeviceRequest], int]
    """The most devices it may name on such a pod."""
    node_key: str = ""
    """Annotation that names the node."""
    before_own: bool = False
    """It takes precedence over gpuplane's own annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectDefinition:
    """One dialect."""

    name: str
    """Stored in the ledger's rows, so it must not change; at most 16 letters."""
    words: str
    """How a refusal describes what pods of the dialect request by."""
    detect: Callable[[Candidate, Collection[str]], bool]
    """Whether the pod uses the dialect. The second argument: resources of the dialects detected before, in the
    registry's order.
    """
    parse: Callable[[Candidate, FindClaim], DeviceRequest]
    """The request of a pod that uses this dialect alone. Raises `claims.dialects.refused.Refused`."""
    check: Callable[[Candidate], object] | None = None
    """Rules that do not depend on what the pod refers to. Raises `Refused`."""

    annotations: frozenset[str] = frozenset()
    """A pod with one of these requests devices."""
    resources: Mapping[str, Dimension] = field(default_factory=dict)
    """A pod with one of these requests devices: full name → what it counts. One that ends with a hyphen is a prefix."""

    unadvertised: frozenset[str] = frozenset()
    """Resources that no node advertises, so kube-scheduler has to ignore them, besides the group `koordinator.sh`."""

    results: Callable[[Placed], Mapping[str, str]] | None = None
    """Annotations of the Binding besides gpuplane's own."""
    exact_amounts: bool = False
    """The results hold the exact amounts, so gpuplane's own annotation of them is omitted."""
    renumbers: bool = True
    """Its pods always get NVIDIA_VISIBLE_DEVICES, which renumbers the devices inside the container."""
    read_back: ReadBack | None = None

    result_keys: frozenset[str] = frozenset()
    """Annotations and labels that only gpuplane and the dialect's scheduler may write."""
    result_starts: frozenset[str] = frozenset()
    """Prefixes of such keys."""
    result_frames: frozenset[tuple[str, str]] = frozenset()
    """(prefix, suffix) of such keys."""

    own_scheduler: bool = False
    """The dialect has a scheduler of its own, which may run in the same cluster."""
    without_devices: Callable[[Pod], frozenset[str]] = lambda _pod: frozenset()
    """Names of the containers that see none of the pod's devices."""
    by_container: bool = False
    """Containers are planned one by one and see only their own devices."""
    by_plugin: bool = False
    """A device plugin may give its pods devices without an annotation on the pod."""
