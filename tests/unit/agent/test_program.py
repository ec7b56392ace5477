"""What the agent makes of what its source says, second by second."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import program
from agent.checkpoint import CheckpointNotRead
from agent.outbox import Measured, Outbox
from agent.program import GOOD_SCANS, MACHINE_SECONDS, Program
from agent.protocol import CheckpointEntry
from agent.sources import Machine, Reading, SourceAway
from tests.unit.agent.faulty import FaultySource


class Told:
    """A program on a simulated machine whose clock stands still until it is told to go on."""

    def __init__(self, checkpoint: Path | None = None, *, machine: str = "h100-8") -> None:
        self.now = 0.0
        self.source = Fragile(machine)
        self.program = Program("n1", self.source, Outbox(), checkpoint=checkpoint, clock=lambda: self.now)

    def look(self, *, later: float = 1.0) -> Any:
        self.now += later
        return self.program.evaluate(self.program.scan())


class Fragile(FaultySource):
    """A simulated machine whose driver may go, and whose cards may vanish."""

    def __init__(self, machine: str = "h100-8") -> None:
        super().__init__(machine, node="n1", clock=lambda: 0.0)
        self.away = ""
        self.vanished: set[int] = set()

    def machine(self) -> Machine:
        if self.away:
            raise SourceAway(self.away)
        whole = super().machine()
        gone = {gpu.uuid for gpu in whole.gpus if gpu.minor in self.vanished}
        devices = tuple(device for device in whole.devices if not gone & {device.uuid, device.parent})
        links = tuple(link for link in whole.links if not self.vanished & {link[0], link[1]})
        return Machine(devices, links, whole.types)

    def read(self, machine: Machine, /) -> Reading:
        if self.away:
            raise SourceAway(self.away)
        reading = super().read(machine)
        health = {gpu.uuid: "fallen off the bus" for gpu in machine.gpus if gpu.minor in self.vanished}
        return Reading(reading.columns, {**reading.health, **health})


def test_the_machine_is_reported_once_and_when_it_changes() -> None:
    """NODE-1 inventory and link matrix on start and on change."""
    told = Told()
    first = told.look().inventory
    assert first is not None
    assert (first["name"], len(first["devices"]), len(first["links"])) == ("n1", 8, 28)
    assert told.look().inventory is None
    assert told.look(later=MACHINE_SECONDS).inventory is None
    told.source._build = told.source._build.__class__("H200", 8, 141 * 2**30, (), 2, (1, 2))
    assert told.look().inventory is None  # not looked at yet
    changed = told.look(later=MACHINE_SECONDS).inventory
    assert changed is not None
    assert {device["model"] for device in changed["devices"]} == {"H200"}
    assert changed["links"] == []


def test_the_first_word_has_what_is_sick() -> None:
    """NODE-1 the inventory as it goes out tells of a GPU that was sick before anything was said."""
    told = Told()
    told.source.fall_sick(3, "Xid 79")
    told.program.enqueue(told.look())
    change = told.program.outbox.next_change()
    assert change is not None
    assert change.inventory is not None
    sick = [device["minor"] for device in change.inventory["devices"] if not device.get("healthy", True)]
    assert sick == [3]


def test_a_sample_has_the_time_of_its_measurement() -> None:
    """NODE-1 not that at which it is sent: who receives it sees how long it waited."""
    told = Told()
    told.program.epoch = lambda: 1000.0 + told.now
    for _ in range(3):
        told.program.enqueue(told.look())
    samples = [told.program.outbox.next_sample() for _ in range(3)]
    assert [sample and sample.at for sample in samples] == [1001.0, 1002.0, 1003.0]


def test_every_look_brings_a_sample() -> None:
    told = Told()
    for _ in range(3):
        assert len(told.look().columns["power_watts"]) == 8


def test_health_is_reported_when_it_changes() -> None:
    """NODE-2 once when a device falls sick, once when it is well."""
    told = Told()
    assert told.look().health == {}
    uuid = told.program.machine.gpus[3].uuid
    told.source.fall_sick(3, "Xid 79")
    assert told.look().health == {uuid: "Xid 79"}
    assert told.look().health == {}
    told.source.recover(3)
    assert [told.look().health for _ in range(GOOD_SCANS)] == [{}] * (GOOD_SCANS - 1) + [{uuid: ""}]
    assert told.look().health == {}


def test_a_gpu_that_vanishes_stays_in_the_inventory() -> None:
    """NODE-1 its holder is still known, it is told to be sick, and the wiring stays as built."""
    told = Told()
    before = told.look().inventory
    uuid = told.program.machine.gpus[5].uuid
    told.source.vanished = {5}
    news = told.look(later=MACHINE_SECONDS)
    assert news.inventory is None
    assert news.health == {uuid: "fallen off the bus"}
    assert len(told.program.machine.gpus) == 8
    told.source.vanished = set()
    news = [told.look(later=MACHINE_SECONDS) for _ in range(GOOD_SCANS)]
    assert [one.inventory for one in news] == [None] * GOOD_SCANS
    assert news[-1].health == {uuid: ""}
    assert before is not None


def test_mig_instances_come_and_go_with_their_layout() -> None:
    """NODE-1 another layout is another inventory; instances are as well as their GPU; samples are of GPUs."""
    told = Told(machine="mig-4")
    first = told.look().inventory
    assert first is not None
    cut = first["devices"][0]
    parts = [device for device in first["devices"] if "parent" in device]
    assert (cut["mig"], len(parts), first["types"]) == (True, 7, ["gpu"])
    assert parts[0].keys() - cut.keys() == {"parent", "profile"}
    told.program.outbox.put_inventory(first)
    assert told.program.outbox.order == tuple(gpu.uuid for gpu in told.program.machine.gpus)
    assert all(len(column) == 4 for column in told.look().columns.values())
    told.source.fall_sick(0, "Xid 79")
    assert told.look().health == dict.fromkeys([cut["uuid"], *(part["uuid"] for part in parts)], "Xid 79")
    told.source._build = msgspec.structs.replace(told.source._build, mig=("3g.20gb", 20 * 2**30))
    changed = told.look(later=MACHINE_SECONDS).inventory
    assert changed is not None
    assert [device["profile"] for device in changed["devices"] if "parent" in device] == ["3g.20gb"] * 2
    told.source._build = msgspec.structs.replace(told.source._build, mig=None)
    whole = told.look(later=MACHINE_SECONDS).inventory
    assert whole is not None
    assert not any({"mig", "parent", "profile"} & device.keys() for device in whole["devices"])


def test_instances_that_come_again_have_the_health_of_now() -> None:
    """NODE-2 an instance may come again with its UUID: what was wrong when it was removed is forgotten."""
    told = Told(machine="mig-4")
    cut = told.source._build
    told.program.enqueue(told.look())
    told.source.fall_sick(0, "Xid 79")
    told.program.enqueue(told.look())
    told.source._build = msgspec.structs.replace(cut, mig=None)
    told.program.enqueue(told.look(later=MACHINE_SECONDS))
    told.source.recover(0)
    for _ in range(GOOD_SCANS):
        told.program.enqueue(told.look())
    told.source._build = cut
    told.program.enqueue(told.look(later=MACHINE_SECONDS))
    change = told.program.outbox.next_change()
    assert change is not None
    assert change.inventory is not None
    assert [one["uuid"] for one in change.inventory["devices"] if not one.get("healthy", True)] == []


def test_instances_stay_with_a_gpu_that_vanishes() -> None:
    """NODE-1 their holders are still known."""
    told = Told(machine="mig-4")
    told.look()
    uuids = {one.uuid for one in told.program.machine.devices if one.minor == 0 or one.parent}
    told.source.vanished = {0}
    news = told.look(later=MACHINE_SECONDS)
    assert news.inventory is None
    assert news.health == dict.fromkeys(uuids, "fallen off the bus")


def test_nics_are_reported_beside_the_gpus() -> None:
    """health of their own, also while the driver is away; a NIC that is there no more stays known."""
    told = Told(machine="rdma-8")
    first = told.look().inventory
    assert first is not None
    nics = [device["uuid"] for device in first["devices"] if device["type"] == "rdma"]
    assert (first["types"], len(nics)) == (["gpu", "rdma"], 8)
    told.source.unplug(2)
    assert told.look().health == {nics[2]: "no port of the NIC is active"}
    told.source.away = "no driver"
    assert told.look().health.keys() == {gpu.uuid for gpu in told.program.machine.gpus}
    told.source.away = ""
    told.source.plug(2)
    well = [told.look().health for _ in range(GOOD_SCANS)][-1]
    assert well[nics[2]] == ""
    told.source._build = msgspec.structs.replace(told.source._build, nics=7)
    assert told.look(later=MACHINE_SECONDS).inventory is None
    assert nics[7] in {one.uuid for one in told.program.machine.devices}
    told.source._build = msgspec.structs.replace(told.source._build, nics=0)
    silent = told.look(later=MACHINE_SECONDS).inventory
    assert silent is not None
    assert silent["types"] == ["gpu"], "of a type that cannot be looked at nothing is said"
    assert {device["type"] for device in silent["devices"]} == {"gpu"}


def test_a_driver_that_goes_and_comes() -> None:
    """NODE-1 every GPU is told to be sick, nothing is sampled, and all is well again when it is back."""
    told = Told()
    told.look()
    uuids = {gpu.uuid for gpu in told.program.machine.gpus}
    told.source.away = "the driver has gone"
    news = told.look()
    assert news.health == dict.fromkeys(uuids, "the driver does not answer")
    assert (news.columns, news.inventory) == ({}, None)
    assert told.look().health == {}
    told.source.away = ""
    news = [told.look() for _ in range(GOOD_SCANS)]
    assert [one.health for one in news] == [{}] * (GOOD_SCANS - 1) + [dict.fromkeys(uuids, "")]
    assert all(one.columns for one in news)


def test_a_driver_that_answers_every_other_second() -> None:
    """NODE-1 its GPUs are sick all the while, which is told once."""
    told = Told()
    uuids = {gpu.uuid for gpu in told.source.machine().gpus}
    told.look()
    changes = []
    for number in range(60):
        told.source.away = "" if number % 2 else "no answer"
        changes.append(told.look().health)
    assert [change for change in changes if change] == [dict.fromkeys(uuids, "the driver does not answer")]


def test_another_fault_is_reported_when_it_lasts() -> None:
    """NODE-1 a sick GPU stays sick while its faults take turns."""
    told = Told()
    told.look()
    uuid = told.program.machine.gpus[3].uuid
    for number in range(20):
        told.source.fall_sick(3, f"Xid {number % 2}")
        assert told.look().health == ({uuid: "Xid 0"} if number == 0 else {})
    assert [told.look().health for _ in range(GOOD_SCANS - 1)][-1] == {uuid: "Xid 1"}


class Hanging(Fragile):
    """Its driver does not come back from a call until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def read(self, machine: Machine, /) -> Reading:
        if self.hangs.is_set():
            self.let_go.wait(20)
        return super().read(machine)


async def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """NODE-1 samples go on and know nothing; its GPUs are told to be sick, and well when it is back; the program can
    end meanwhile.
    """
    for name in ("SAMPLE_SECONDS", "QUIET_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(program, name, 0.01)
    monkeypatch.setattr(program, "HANG_SECONDS", 0.1)
    source, outbox = Hanging(), Outbox()
    one = Program("n1", source, outbox)
    running = asyncio.create_task(one.run())
    try:
        await until(lambda: outbox.next_change() is not None)
        uuids = {gpu.uuid for gpu in one.machine.gpus}
        source.hangs.set()
        await until(lambda: bool(outbox._health))
        assert outbox._health == dict.fromkeys(uuids, "the driver hangs")
        assert [sample.columns for sample in outbox._samples][-1] == {}
        dropped = outbox.dropped
        await until(lambda: outbox.dropped > dropped + 5)
        assert not await one.close()
        source.let_go.set()
        await until(lambda: outbox._health == dict.fromkeys(uuids, ""))
        assert outbox._samples[-1].columns
    finally:
        source.let_go.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await one.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.005)


ENDLESS = """
import sys, threading
from agent import __main__, sources

class Endless:
    def machine(self):
        print("looking", flush=True)
        threading.Event().wait()
    def close(self):
        threading.Event().wait()

__main__.open_source = lambda *_, **__: Endless()
sys.exit(__main__.main(["--node", "n1", "--server", "http://127.0.0.1:1", "--checkpoint", ""]))
"""


def test_a_program_whose_driver_hangs_can_be_stopped() -> None:
    """NODE-1 within its pod's grace, although a thread never comes back."""
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        while b"looking" not in process.stdout.readline():
            pass
        process.terminate()
        try:
            assert process.wait(timeout=program.CLOSE_SECONDS + 10) == 0
        finally:
            process.kill()


def test_without_a_driver_from_the_start() -> None:
    """NODE-1 nothing is known, and nothing is said but that the agent is there; when the driver comes the machine is
    told.
    """
    told = Told()
    told.source.away = "no driver"
    news = told.look()
    assert (news.inventory, dict(news.health), news.columns) == (None, {}, {})
    told.program.enqueue(news)
    assert told.program.outbox.next_sample() == Measured({}, news.at)
    told.source.away = ""
    assert told.look().inventory is not None


def checkpoint(*pods: str) -> str:
    entries = [
        {"PodUID": pod, "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": ["GPU-1"]}}
        for pod in pods
    ]
    return json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})


def test_the_kubelets_record_is_reported_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DEV-8 read again only when the file is another one; what cannot be understood is not sent and hides nothing that
    was.
    """
    path = tmp_path / "kubelet_internal_checkpoint"
    told = Told(path)
    assert told.look().checkpoint is None
    path.write_text(checkpoint("a"))
    assert told.look().checkpoint == [CheckpointEntry("a", "main", "nvidia.com/gpu", ["GPU-1"])]
    assert told.look().checkpoint is None
    path.write_text(checkpoint("a", "b")[:-20])
    assert told.look().checkpoint is None
    assert "checkpoint.unreadable" in caplog.text
    path.write_text(checkpoint("a", "b"))
    assert [entry.pod_uid for entry in told.look().checkpoint] == ["a", "b"]
    path.write_text(checkpoint())
    assert told.look().checkpoint == []
    path.unlink()
    assert told.look().checkpoint is None


def test_a_record_that_could_not_be_read_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEV-8 with the next look, and not only once the kubelet writes it; one line says so."""
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(checkpoint("a"))
    told = Told(path)

    def broken(_: Path) -> list[CheckpointEntry]:
        raise CheckpointNotRead("the file cannot be read: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("agent.program.read_file", broken)
        assert [told.look().checkpoint for _ in range(3)] == [None] * 3
    assert caplog.text.count("checkpoint.not_read") == 1
    assert [entry.pod_uid for entry in told.look().checkpoint] == ["a"]
