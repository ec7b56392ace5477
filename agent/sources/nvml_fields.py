"""NVML field values: many figures of a GPU in one call, each with a scope, a type and an error of its own.

Used by the NVML source. By NVML's reference the scope of an NVLink counter is the link's number, or ALL_LINKS for the
sum; other fields ignore it. The type names the member of a union that has the value. Invariants: a value of an unknown
type is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from agent.sources.nvml_driver import Driver, count_of

ALL_LINKS: Final = 0xFFFFFFFF
FIGURE: Final = -2
"""In place of a link's number: a figure of the sample."""

Key = tuple[str, int]
"""Name and link of a figure; -1: of the GPU."""
Ask = tuple[Key, int, int]
"""Key, number of the field, scope."""

_FIGURES: Final = {
    "nvlink_tx": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "nvlink_tx_bytes": "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES",
    "nvlink_rx_bytes": "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES",
    "pcie_tx": "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
    "pcie_rx": "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
    "remap_failed": "NVML_FI_DEV_REMAPPED_FAILURE",
    "remap_pending": "NVML_FI_DEV_REMAPPED_PENDING",
    "recovery_action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
}
"""NVLink throughput counts KiB of data since the driver was loaded, NVLink 5 (Blackwell) and PCIe bytes."""
_MEMBERS: Final = {
    "NVML_VALUE_TYPE_DOUBLE": "dVal",
    "NVML_VALUE_TYPE_UNSIGNED_INT": "uiVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG": "ulVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": "ullVal",
    "NVML_VALUE_TYPE_SIGNED_LONG_LONG": "sllVal",
    "NVML_VALUE_TYPE_SIGNED_INT": "siVal",
    "NVML_VALUE_TYPE_UNSIGNED_SHORT": "usVal",
}


class FieldValues(NamedTuple):
    """The answers to a call."""

    values: dict[Key, int]
    narrow: frozenset[Key]
    """Values of 32 bits: as counters they wrap at 2^32."""
    silent: frozenset[Key]
    """Fields that failed now."""
    absent: frozenset[Key]
    """Fields that this GPU does not have."""

    def figures(self) -> dict[str, int]:
        """The figures of a sample by name."""
        return {name: value for (name, link), value in self.values.items() if link == FIGURE}


class Fields:
    """Reads field values."""

    def __init__(self, driver: Driver) -> None:
        nv = driver.nv
        self._driver = driver
        self._members = {getattr(nv, kind): member for kind, member in _MEMBERS.items() if hasattr(nv, kind)}
        # INVALID_ARGUMENT: by GPUs before Hopper of fields that they do not have
        codes = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "DEPRECATED")
        self._none = {getattr(nv, f"NVML_ERROR_{code}") for code in codes if hasattr(nv, f"NVML_ERROR_{code}")}
        self.figures: list[Ask] = [
            ((name, FIGURE), getattr(nv, field), ALL_LINKS if name.startswith("nvlink") else 0)
            for name, field in _FIGURES.items()
            if hasattr(nv, field)  # older bindings lack some
        ]
        self.pcie = [ask for ask in self.figures if ask[0][0].startswith("pcie")]

    def read(self, handle: Any, wanted: Sequence[Ask]) -> FieldValues:
        """The values that this GPU has, in one call. Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._driver.nv
        asked = [(number, scope) for _, number, scope in wanted]
        answers = self._driver.maybe(nv.nvmlDeviceGetFieldValues, handle, asked) if asked else None
        if any(answer.nvmlReturn == nv.NVML_ERROR_GPU_IS_LOST for answer in answers or ()):
            raise nv.NVMLError(nv.NVML_ERROR_GPU_IS_LOST)
        found: dict[Key, int] = {}
        narrow: set[Key] = set()
        silent: set[Key] = set()
        absent: set[Key] = set()
        for (key, _, _), answer in zip(wanted, answers or (), strict=False):
            if answer.nvmlReturn == nv.NVML_SUCCESS:
                member = self._members.get(answer.valueType)
                value = None if member is None else count_of(getattr(answer.value, member))
                if value is not None:
                    found[key] = value
                    if answer.valueType == nv.NVML_VALUE_TYPE_UNSIGNED_INT:
                        narrow.add(key)
            else:
                (absent if answer.nvmlReturn in self._none else silent).add(key)
        if answers is not None and not found:
            self._driver.answered -= 1  # the call succeeded without any value
        return FieldValues(found, frozenset(narrow), frozenset(silent), frozenset(absent))
