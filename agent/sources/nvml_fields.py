"""Field values: many figures of a GPU in one call, each with a scope, a type and an error of its own.

Used by the NVML source. By NVML's reference: the scope of a counter of NVLinks is the number of the link, or ALL_LINKS
for their sum; of other fields it is not looked at. A value is in the member of a union that its type names, and what
stands in the rest of the union is anything. Kept true: a value of a type that is not known here is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from agent.sources.nvml_driver import Driver, count_of

ALL_LINKS: Final = 0xFFFFFFFF
FIGURE: Final = -2
"""In place of a link's number: the field is a figure of a sample."""
NARROW_BITS: Final = 32

Key = tuple[str, int]
"""A figure and the link that it is of; -1: of the GPU."""
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
"""The throughput of NVLinks counts KiB of data since the driver was loaded; NVLink 5 (Blackwell) counts bytes. PCIe
counts are bytes.
"""
_MEMBERS: Final = {
    "NVML_VALUE_TYPE_DOUBLE": "dVal",
    "NVML_VALUE_TYPE_UNSIGNED_INT": "uiVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG": "ulVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": "ullVal",
    "NVML_VALUE_TYPE_SIGNED_LONG_LONG": "sllVal",
    "NVML_VALUE_TYPE_SIGNED_INT": "siVal",
    "NVML_VALUE_TYPE_UNSIGNED_SHORT": "usVal",
}


class Answers(NamedTuple):
    """What was said of the fields asked for."""

    values: dict[Key, int]
    narrow: frozenset[Key]
    """Those of 32 bits: as counters they begin anew every 2^32."""
    silent: frozenset[Key]
    """Those that gave no answer, which may be one again."""
    absent: frozenset[Key]
    """Those that this GPU does not have."""

    def figures(self) -> dict[str, int]:
        """The figures of a sample by name."""
        return {name: value for (name, link), value in self.values.items() if link == FIGURE}


class Fields:
    """Asks for field values."""

    def __init__(self, driver: Driver) -> None:
        nv = driver.nv
        self._driver = driver
        self._members = {getattr(nv, kind): member for kind, member in _MEMBERS.items() if hasattr(nv, kind)}
        # an argument that is not one: GPUs before Hopper say it of what they do not have
        codes = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "DEPRECATED")
        self._none = {getattr(nv, f"NVML_ERROR_{code}") for code in codes if hasattr(nv, f"NVML_ERROR_{code}")}
        self.figures: list[Ask] = [
            ((name, FIGURE), getattr(nv, field), ALL_LINKS if name.startswith("nvlink") else 0)
            for name, field in _FIGURES.items()
            if hasattr(nv, field)  # fields grow with the driver's headers
        ]
        self.pcie = [ask for ask in self.figures if ask[0][0].startswith("pcie")]

    def read(self, handle: Any, wanted: Sequence[Ask]) -> Answers:
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
            self._driver.answered -= 1  # the call came back, and of nothing in it
        return Answers(found, frozenset(narrow), frozenset(silent), frozenset(absent))
