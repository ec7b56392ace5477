"""Details of GPUs by NVML: each NVLink's state and errors, ECC counts, processes, MIG devices.

Used by `agent.sources.nvml`. Invariants: links and MIG devices are listed with the machine; links' state and errors are
read with every reading, in one call a GPU; what a driver does not say, or cannot be true, is unknown; the name of a
process is read once, and forgotten with the process, whose number may be reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.protocol import BOUNDS, DeviceDetails, LinkDetails, MigDetails, ProcessDetails
from agent.sources.nvml_driver import MOST_MEMORY, Driver, count_of, text
from agent.sources.nvml_fields import Ask, FieldValues, Key
from agent.sources.wiring import SWITCH, Seen, short

PROCESSES_MOST: Final = 24
"""Processes a GPU, those with the most memory: a frame of 64 GPUs stays below its limit."""
NAME_MOST: Final = 64
MOST_ERRORS: Final = BOUNDS["ecc_corrected"][1]
_UP: Final = frozenset({"NVML_NVLINK_STATE_ACTIVE", "NVML_NVLINK_STATE_SLEEP"})


class DetailReader:
    """Reads the details of a machine's GPUs."""

    def __init__(self, driver: Driver) -> None:
        nv = driver.nv
        self._nv = nv
        self._maybe = driver.maybe
        self._links: dict[str, list[LinkDetails]] = {}
        self._migs: dict[str, list[MigDetails]] = {}
        self._asks: dict[str, list[Ask]] = {}
        self._names: dict[int, str] = {}
        self._up = {getattr(nv, name) for name in _UP if hasattr(nv, name)}

    def note_migs(self, uuid: str, migs: Sequence[MigDetails]) -> None:
        """Set the GPU's MIG devices."""
        self._migs[uuid] = list(migs)

    def name_ends(self, seen: Sequence[Seen]) -> None:
        """Set each GPU's links and their far ends."""
        uuid_of = {short(one.bus): one.facts.uuid for one in seen}
        for one in seen:
            self._links[one.facts.uuid] = [
                LinkDetails(end.number, end.is_up, _remote(end.remote, uuid_of)) for end in one.ends if end.answers
            ]
            self._asks[one.facts.uuid] = self._asks_of(one.facts.uuid)

    def asks(self, uuid: str) -> list[Ask]:
        """Fields to read beside the figures."""
        return self._asks.get(uuid, [])

    def _asks_of(self, uuid: str) -> list[Ask]:
        """The fields that the binding knows, computed once a listing: that takes longer than reading them."""
        found: list[Ask] = []
        for name, field in _OF_GPU.items():
            if hasattr(self._nv, field):
                found.append(((name, -1), getattr(self._nv, field), 0))
        for link in self._links.get(uuid, ()):
            for name, field in _OF_LINK.items():
                if hasattr(self._nv, field):
                    found.append(((name, link.number), getattr(self._nv, field), link.number))
            for name, field in _OF_OLD_LINK.items():
                if hasattr(self._nv, numbered := f"{field}{link.number}"):
                    found.append(((name, link.number), getattr(self._nv, numbered), 0))
        return found

    def details(self, uuid: str, handle: Any, answers: FieldValues) -> DeviceDetails:
        """Details of one GPU, without links whose state is not known now: they are neither up nor down."""
        values = answers.values
        if answers.absent:  # until the next listing
            self._asks[uuid] = [ask for ask in self._asks.get(uuid, ()) if ask[0] not in answers.absent]
        return DeviceDetails(
            [
                self._link(link, values)
                for link in self._links.get(uuid, ())
                if ("state", link.number) not in answers.silent
            ],
            count_of(values.get(("ecc_corrected", -1)), MOST_ERRORS),
            count_of(values.get(("ecc_uncorrected", -1)), MOST_ERRORS),
            self._processes(handle),
            self._migs.get(uuid, []),
        )

    def _link(self, known: LinkDetails, answers: Mapping[Key, int]) -> LinkDetails:
        state = answers.get(("state", known.number))

        def errors(name: str) -> int | None:
            said = (answers.get((f"{age}{name}", known.number)) for age in ("", "nvlink5_", "old_"))
            return count_of(next((count for count in said if count is not None), None), MOST_ERRORS)

        return LinkDetails(
            known.number,
            known.is_up if state is None else state in self._up,
            known.remote,
            errors("replay_errors"),
            errors("recovery_errors"),
            errors("crc_errors"),
        )

    def _processes(self, handle: Any) -> list[ProcessDetails] | None:
        """The processes with the most memory; None where the driver does not list them."""
        nv = self._nv
        found: dict[int, int | None] = {}
        is_known = False
        for call in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetGraphicsRunningProcesses):
            answer = self._maybe(call, handle)
            is_known = is_known or answer is not None
            for one in answer or ():
                known, used = found.get(one.pid), count_of(one.usedGpuMemory, MOST_MEMORY)
                found[one.pid] = used if known is None else max(known, used or 0)
        if not is_known:
            return None
        largest = sorted(found.items(), key=lambda item: (-(item[1] or 0), item[0]))[:PROCESSES_MOST]
        return [ProcessDetails(pid, self._name(pid), used) for pid, used in sorted(largest)]

    def _name(self, pid: int) -> str:
        """The name of a process by the driver, cached unless the look-up failed."""
        if pid not in self._names:
            name = self._maybe(self._nv.nvmlSystemGetProcessName, pid)
            if name is None:
                return ""
            self._names[pid] = text(name).rpartition("/")[2][:NAME_MOST]
        return self._names[pid]

    def forget_others(self, present: Sequence[DeviceDetails]) -> None:
        """Forget the names of processes that are not in these details."""
        pids = {process.pid for one in present for process in one.processes or ()}
        self._names = {pid: name for pid, name in self._names.items() if pid in pids}


_OF_GPU: Final = {"ecc_corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL"}
_OF_LINK: Final = {
    "state": "NVML_FI_DEV_NVLINK_GET_STATE",
    "replay_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "nvlink5_recovery_errors": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "nvlink5_crc_errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
}
"""Fields whose scope is the link's number: Hopper, and NVLink 5 (Blackwell), which counts recoveries and packets with
errors.
"""
_OF_OLD_LINK: Final = {
    "old_replay_errors": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L",
    "old_recovery_errors": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L",
    "old_crc_errors": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L",
}
"""Fields before Hopper, whose names end with the link's number."""


def _remote(end: str, uuid_of: Mapping[str, str]) -> str:
    return end if end in {"", SWITCH} else uuid_of.get(short(end), end)
