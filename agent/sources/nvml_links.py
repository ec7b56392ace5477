"""NVLinks of GPUs by NVML: their number, state and far ends.

Used by the NVML source with each listing of the machine. Invariants: a link that does not answer hides no other; in the
link matrix it keeps the state of its last answer, so that a slow link does not change the node's inventory.
"""

from __future__ import annotations

import re
from typing import Any, Final

from agent.sources.nvml_driver import Driver, text
from agent.sources.nvml_fields import Fields
from agent.sources.wiring import SWITCH, LinkEnd

_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_COUNT: Final = ("links", -1)


class NvLinks:
    """NVLinks of a machine's GPUs."""

    def __init__(self, driver: Driver, fields: Fields) -> None:
        self._driver = driver
        self._fields = fields
        self._known: dict[tuple[str, int], LinkEnd] = {}
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        if reloaded:
            self._known.clear()

    def of(self, uuid: str, handle: Any) -> list[LinkEnd]:
        """The links of one GPU, by number. Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._driver.nv
        count = self._count(handle)
        ends: list[LinkEnd] = []
        for link in range(nv.NVML_NVLINK_MAX_LINKS):
            if count is not None and len(ends) >= count:
                break
            state, error = self._driver.tried(nv.nvmlDeviceGetNvLinkState, handle, link)
            known = self._known.get((uuid, link))
            if state is not None:
                remote = self._far_end(handle, link) or (known.remote if known else "")
                self._known[uuid, link] = end = LinkEnd(link, state == nv.NVML_FEATURE_ENABLED, remote)
                ends.append(end)
            elif isinstance(error, nv.NVMLError_InvalidArgument):
                break  # there are no more
            elif self._driver.is_none(error):
                if count is None and not ends:
                    break  # a GPU without NVLinks
            else:
                ends.append(
                    LinkEnd(link, known is not None and known.is_up, known.remote if known else "", answers=False)
                )
        return ends

    def _count(self, handle: Any) -> int | None:
        """Number of links, None where the driver does not say."""
        number = getattr(self._driver.nv, "NVML_FI_DEV_NVLINK_LINK_COUNT", None)
        return None if number is None else self._fields.read(handle, [(_COUNT, number, 0)]).values.get(_COUNT)

    def _far_end(self, handle: Any, link: int) -> str:
        """`LinkEnd.remote`; a link that is down may have none."""
        nv = self._driver.nv
        kind = self._driver.maybe(nv.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nv.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        remote = self._driver.maybe(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        bus = "" if remote is None else text(remote.busId).lower()
        return bus if _BUS.fullmatch(bus) else ""
