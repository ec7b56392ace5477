"""What the driver tells of a GPU beyond its figures: each NVLink's state and errors, ECC counts, processes, MIG devices.

Used by `agent.sources.nvml`, which makes the calls. Kept true: links and MIG devices are counted when the machine is looked at, their state and errors with
every reading, in one call a GPU; what a GPU or a driver does not tell, or cannot be true, is unknown; a process is called what it was called when
it began to be seen, and forgotten with it, since its number goes to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent.protocol import BOUNDS, MOST_MIGS, DeviceDetails, LinkDetails, MigDetails, ProcessDetails
from agent.sources.wiring import SWITCH, Seen, short

PROCESSES_MOST: Final = 24
"""Of one GPU, those with the most memory: a frame of 64 GPUs stays below its limit."""
NAME_MOST: Final = 64
MOST_ERRORS: Final = BOUNDS["ecc_corrected"][1]
MOST_MEMORY: Final = BOUNDS["memory_used_bytes"][1]
_UP: Final = frozenset({"NVML_NVLINK_STATE_ACTIVE", "NVML_NVLINK_STATE_SLEEP"})

Key = tuple[str, int]
"""A figure and the link that it is of; -1: of the GPU."""
Ask = tuple[Key, int, int]
"""Key, number of the field, scope."""
Maybe = Callable[..., Any]
"""Makes a call; None where the GPU or the driver has no such thing."""


class Closely:
    """The GPUs of one machine. `nv`: the binding; `maybe`: as above."""

    def __init__(self, nv: Any, maybe: Maybe) -> None:
        self._nv = nv
        self._maybe = maybe
        self._links: dict[str, list[LinkDetails]] = {}
        self._migs: dict[str, list[MigDetails]] = {}
        self._asks: dict[str, list[Ask]] = {}
        self._names: dict[int, str] = {}
        self._up = {getattr(nv, name) for name in _UP if hasattr(nv, name)}

    def look(self, one: Seen) -> None:
        """Note the GPU's MIG devices. Raises what `maybe` raises."""
        self._migs[one.facts.uuid] = self._parts(one.handle)

    def name_ends(self, seen: Sequence[Seen]) -> None:
        """Note each GPU's links, and where they end."""
        uuid_of = {short(one.bus): one.facts.uuid for one in seen}
        for one in seen:
            self._links[one.facts.uuid] = [
                LinkDetails(end.number, end.is_up, _remote(end.remote, uuid_of)) for end in one.ends
            ]
            self._asks[one.facts.uuid] = self._asks_of(one.facts.uuid)

    def asks(self, uuid: str) -> list[Ask]:
        """Fields to ask for beside the figures."""
        return self._asks.get(uuid, [])

    def _asks_of(self, uuid: str) -> list[Ask]:
        """Worked out with each look at the machine: which of a hundred names a binding has takes longer than asking the driver for them."""
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

    def details(self, uuid: str, handle: Any, answers: Mapping[Key, int]) -> DeviceDetails:
        """Everything of one GPU; `answers`: those of the fields that were answered."""
        return DeviceDetails(
            [self._link(link, answers) for link in self._links.get(uuid, ())],
            count_of(answers.get(("ecc_corrected", -1)), MOST_ERRORS),
            count_of(answers.get(("ecc_uncorrected", -1)), MOST_ERRORS),
            self._processes(handle),
            self._migs.get(uuid, []),
        )

    def _link(self, known: LinkDetails, answers: Mapping[Key, int]) -> LinkDetails:
        state = answers.get(("state", known.number))

        def errors(name: str) -> int | None:
            newer = answers.get((name, known.number))
            return count_of(answers.get((f"old_{name}", known.number)) if newer is None else newer, MOST_ERRORS)

        return LinkDetails(
            known.number,
            known.is_up if state is None else state in self._up,
            known.remote,
            errors("replay_errors"),
            errors("recovery_errors"),
            errors("crc_errors"),
        )

    def _processes(self, handle: Any) -> list[ProcessDetails] | None:
        """The processes with the most memory; None where the driver does not say."""
        nv = self._nv
        found: dict[int, int | None] = {}
        told = False
        for call in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetGraphicsRunningProcesses):
            answer = self._maybe(call, handle)
            told = told or answer is not None
            for one in answer or ():
                found[one.pid] = count_of(one.usedGpuMemory, MOST_MEMORY)
        if not told:
            return None
        largest = sorted(found.items(), key=lambda item: (-(item[1] or 0), item[0]))[:PROCESSES_MOST]
        return [ProcessDetails(pid, self._name(pid), used) for pid, used in sorted(largest)]

    def _name(self, pid: int) -> str:
        """As the driver knows it; remembered, since it is asked for each second, but for a look-up that failed."""
        if pid not in self._names:
            told = self._maybe(self._nv.nvmlSystemGetProcessName, pid)
            if told is None:
                return ""
            self._names[pid] = text(told).rpartition("/")[2][:NAME_MOST]
        return self._names[pid]

    def forget_others(self, present: Sequence[DeviceDetails]) -> None:
        """Forget the names of processes that are not in this reading of any GPU."""
        pids = {process.pid for one in present for process in one.processes or ()}
        self._names = {pid: name for pid, name in self._names.items() if pid in pids}

    def _parts(self, handle: Any) -> list[MigDetails]:
        nv = self._nv
        mode = self._maybe(nv.nvmlDeviceGetMigMode, handle)
        if mode is None or mode[0] != nv.NVML_DEVICE_MIG_ENABLE:
            return []
        found = []
        for index in range(min(self._maybe(nv.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, MOST_MIGS)):
            part = self._maybe(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            uuid = None if part is None else self._maybe(nv.nvmlDeviceGetUUID, part)
            if uuid is None:
                continue  # a place where no part is
            memory = self._maybe(nv.nvmlDeviceGetMemoryInfo, part)
            name = text(self._maybe(nv.nvmlDeviceGetName, part) or "")
            found.append(
                MigDetails(
                    text(uuid),
                    name.rpartition("MIG ")[2],
                    None if memory is None else count_of(memory.total, MOST_MEMORY),
                )
            )
        return found


_OF_GPU: Final = {"ecc_corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL"}
_OF_LINK: Final = {
    "state": "NVML_FI_DEV_NVLINK_GET_STATE",
    "replay_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
}
"""Fields whose scope is the number of the link: Hopper and later."""
_OF_OLD_LINK: Final = {
    "old_replay_errors": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L",
    "old_recovery_errors": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L",
    "old_crc_errors": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L",
}
"""Fields that end with the number of the link: before."""


def _remote(end: str, uuid_of: Mapping[str, str]) -> str:
    return end if end in {"", SWITCH} else uuid_of.get(short(end), end)


def text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def count_of(value: float | None, most: int = 2**63 - 1) -> int | None:
    """A count as the driver gives it, None where it cannot be one: drivers say all bits set for `not known`, and counters go astray."""
    return int(value) if value is not None and 0 <= value <= most else None
