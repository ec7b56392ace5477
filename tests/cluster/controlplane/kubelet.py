"""Kubelets with NVIDIA's device plugin, imitated: they choose GPUs, and run what reservation pods run.

Used by the tests of reservation pods, together with KWOK, which keeps the nodes ready but leaves pods on nodes whose
name begins with PREFIX alone (`objects.STAGES`). As a kubelet does it, for each of its nodes:

1. A pod that is new on the node gets as many free GPUs as it asks for by `nvidia.com/gpu`, at random or as `choose`
   and `keep` say. Where too few are free it is `Failed` with the kubelet's reason and message.
2. The record of devices is written in the format of the kubelet's checkpoint, for an agent with `--checkpoint`, and
   told to `heard`.
3. A reservation pod's program runs as a process, with a token bound to the pod and driver files that show its GPUs
   alone. In `fast` mode the annotation is written here instead.
4. The pod is Running. Once it is deleted, or has ended, the program is stopped and the GPUs are free.

`behave` makes a node do something else; `forget` has it lose its record, as a kubelet that starts without its file.
Invariants: a GPU has one pod, unless the record was lost; what is done for one pod never overtakes itself.
"""

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from tests.cluster.controlplane.api import ApiRefused, Json
from tests.cluster.controlplane.containers import Sandbox, asked, is_reservation, running, start_program
from tests.cluster.controlplane.device_manager import Behaviour, DeviceManager
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import KUBELET_PREFIX, inventory, node
from tests.cluster.controlplane.stack import SETTLE_SECONDS, Stack, eventually

PREFIX: Final = KUBELET_PREFIX
RESERVED: Final = "run.ai/reserve_for_gpu_index"
DEVICE_PLUGIN: Final = {"gpu.scheduling/mode": "device-plugin"}
THREADS: Final = 8
T = TypeVar("T")


class Kubelets:
    """The kubelets of these nodes, GPUs by UUID. They run while the block of `running` lasts."""

    def __init__(
        self,
        plane: ControlPlane,
        nodes: Mapping[str, Sequence[str]],
        *,
        seed: int = 0,
        fast: bool = False,
        heard: Callable[[str, Mapping[str, Sequence[str]]], None] | None = None,
    ) -> None:
        """`heard(node, record)` is called with each change of a node's record, by one thread at a time; admission waits
        for it.
        """
        assert all(name.startswith(PREFIX) for name in nodes), f"KWOK runs the pods of nodes not called {PREFIX}…"
        self._plane = plane
        self._api = plane.api
        self._managers = {name: DeviceManager(tuple(gpus)) for name, gpus in nodes.items()}
        self._random = random.Random(seed)
        self._fast = fast
        self._heard = heard
        self._folder = plane.folder / f"kubelets-{id(self):x}"
        self._changed = threading.Condition()
        """Held while records change."""
        self._sandboxes: dict[str, Sandbox] = {}
        self._closing = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubelet")
        self.late = threading.Event()
        self.other = "GPU-of-nobody"

    # what tests say and ask

    def choose(self, name: str, *gpus: str) -> None:
        """Give exactly these to the next pod of the node that asks for GPUs; each call is for one pod."""
        self._managers[name].choices.append(gpus)

    def keep(self, name: str, pod: str, *gpus: str) -> None:
        """Give these to every pod of that name, and to no other pod."""
        self._managers[name].kept[pod] = gpus

    def behave(self, name: str, behaviour: Behaviour, *, other: str = "") -> None:
        """From now on."""
        self._managers[name].other = other or self.other
        self._managers[name].behaviour = behaviour

    def forget(self, name: str) -> None:
        """Lose the record: GPUs of pods that run are given to others again."""
        with self._changed:
            self._managers[name].record.clear()
            self._recorded(name)

    def record(self, name: str) -> dict[str, tuple[str, ...]]:
        """Pod UID → GPUs."""
        with self._changed:
            return dict(self._managers[name].record)

    def records(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Node → pod UID → GPUs."""
        with self._changed:
            return {name: dict(manager.record) for name, manager in self._managers.items()}

    def free(self, name: str) -> list[str]:
        """GPUs that no pod has."""
        with self._changed:
            return self._managers[name].free()

    def checkpoint(self, name: str) -> Path:
        """The file with the node's record."""
        return self._folder / name / "kubelet_internal_checkpoint"

    def log(self, uid: str) -> str:
        """What the program of this reservation pod has said."""
        path = self._folder / uid / "reserve.log"
        return path.read_text() if path.exists() else ""

    def until(self, true: Callable[["Kubelets"], object], *, seconds: float, what: str) -> None:
        """Wait until it is true of the records; AssertionError after `seconds`."""
        with self._changed:
            done = self._changed.wait_for(lambda: bool(self._failures) or true(self), seconds)
        self._raise_failure()
        assert done, f"after {seconds:.0f} s still not: {what}"

    @contextmanager
    def running(self) -> Iterator["Kubelets"]:
        """Until the block ends. A failure of the imitation itself is raised at its end, at the latest."""
        for name in self._managers:
            self._recorded(name)
        watching = threading.Thread(target=self._guarded, args=(self._follow,), name="kubelets")
        watching.start()
        try:
            yield self
        finally:
            self._closing.set()
            self.late.set()
            watching.join(30)
            self._threads.shutdown()
            for sandbox in list(self._sandboxes.values()):
                self._stop(sandbox)
        self._raise_failure()

    # the watch

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                listed = self._api.get("/api/v1/pods")
                self._compare(listed["items"])
                self._watch(str(listed["metadata"]["resourceVersion"]))
            except (httpx.TransportError, ApiRefused):
                self._closing.wait(0.2)  # the API server is being restarted by the test

    def _compare(self, pods: Sequence[Json]) -> None:
        there = {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            self._take(pod)
        for uid, sandbox in list(self._sandboxes.items()):
            if uid not in there:
                self._submit(self._end, sandbox)

    def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        while not self._closing.is_set():
            try:
                with self._api.http.stream(
                    "GET", "/api/v1/pods", params=query, timeout=httpx.Timeout(5, read=1)
                ) as answer:
                    if answer.status_code >= 300:
                        raise ApiRefused(answer.status_code, answer.read().decode(errors="replace"))
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiRefused(event["object"].get("code", 0), event["object"].get("message", ""))
                        query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] == "DELETED":
                            self._gone(event["object"])
                        elif event["type"] != "BOOKMARK":
                            self._take(event["object"])
                        if self._closing.is_set():
                            return
            except httpx.ReadTimeout:
                continue  # nothing happened for a second: a chance to see that we are to end

    def _take(self, pod: Json) -> None:
        """Look at a pod as it is now."""
        manager = self._managers.get(pod["spec"].get("nodeName", ""))
        if manager is None:
            return
        sandbox = self._sandboxes.get(pod["metadata"]["uid"])
        deleted, phase = "deletionTimestamp" in pod["metadata"], pod["status"].get("phase")
        if sandbox is None and phase == "Pending" and not deleted:
            self._admit(manager, pod)
        elif phase in {"Succeeded", "Failed"} and sandbox is not None:
            self._submit(self._end, sandbox)
        if deleted:
            self._submit(self._delete, pod, sandbox)

    def _gone(self, pod: Json) -> None:
        sandbox = self._sandboxes.get(pod["metadata"]["uid"])
        if sandbox is not None:
            self._submit(self._end, sandbox)

    # a pod's life

    def _admit(self, manager: DeviceManager, pod: Json) -> None:
        meta, name = pod["metadata"], pod["spec"]["nodeName"]
        wanted = asked(pod)
        with self._changed:
            free = manager.free()
            chosen: tuple[str, ...] = ()
            if wanted and wanted <= len(free) and manager.behaviour not in _REASONS:
                chosen = manager.choice(meta["name"], wanted, self._random)
                manager.record[meta["uid"]] = chosen
                self._recorded(name)
        sandbox = Sandbox(meta["namespace"], meta["name"], meta["uid"], name, chosen)
        self._sandboxes[sandbox.uid] = sandbox
        if manager.behaviour == "late" and is_reservation(pod):
            # not in the pool, whose threads others need meanwhile
            threading.Thread(target=self._run_late, args=(sandbox, pod)).start()
        elif chosen or not wanted:
            self._submit(self._run, sandbox, pod, manager.behaviour)
        else:
            reason = manager.behaviour if manager.behaviour in _REASONS else "UnexpectedAdmissionError"
            message = _REASONS[reason].format(wanted=wanted, free=len(free), all=len(manager.gpus))
            status = {"phase": "Failed", "reason": reason, "message": message}
            self._submit(self._say_status, sandbox, status)

    def _run_late(self, sandbox: Sandbox, pod: Json) -> None:
        self.late.wait()
        if not self._closing.is_set():
            # a program dies with the thread that started it
            self._submit(self._run, sandbox, pod, "as usual")

    def _run(self, sandbox: Sandbox, pod: Json, behaviour: Behaviour) -> None:
        behaviour = behaviour if is_reservation(pod) else "never"
        shown = (self._managers[sandbox.node].other,) if behaviour == "other" else sandbox.gpus
        with sandbox.lock:
            if sandbox.ended:
                return
            if behaviour != "never":
                if self._fast:
                    body = {"metadata": {"uid": sandbox.uid, "annotations": {RESERVED: ",".join(shown)}}}
                    self._patch(sandbox, "", body)
                else:
                    folder = self._folder / sandbox.uid
                    start = partial(start_program, self._plane, folder, sandbox, pod, shown)
                    sandbox.program = self._insisted(start)
            self._say_status(sandbox, running(pod))

    def _end(self, sandbox: Sandbox) -> None:
        """Stop the program, then give the GPUs back."""
        self._stop(sandbox)
        with self._changed:
            self._sandboxes.pop(sandbox.uid, None)
            if self._managers[sandbox.node].record.pop(sandbox.uid, None) is not None:
                self._recorded(sandbox.node)

    def _stop(self, sandbox: Sandbox) -> None:
        with sandbox.lock:
            sandbox.ended = True
            if sandbox.program is not None:
                sandbox.program.stop()

    def _delete(self, pod: Json, sandbox: Sandbox | None) -> None:
        """Take the object of a deleted pod away, as a kubelet does once the containers have ended."""
        if sandbox is not None:
            self._stop(sandbox)
        meta = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._insisted(partial(self._api.request, "DELETE", path, body))

    def _say_status(self, sandbox: Sandbox, status: Json) -> None:
        self._patch(sandbox, "/status", {"metadata": {"uid": sandbox.uid}, "status": status})

    def _patch(self, sandbox: Sandbox, subresource: str, body: Json) -> None:
        path = f"/api/v1/namespaces/{sandbox.namespace}/pods/{sandbox.name}{subresource}"
        self._insisted(partial(self._api.patch, path, body))

    def _insisted(self, call: Callable[[], T]) -> T | None:
        """What the API server answers, as soon as it does; None where the pod has gone or another one is there."""
        while not self._closing.is_set():
            try:
                return call()
            except httpx.TransportError:
                self._closing.wait(0.2)
            except ApiRefused as refused:
                if refused.code in {404, 409} or (refused.code == 422 and "metadata.uid" in refused.message):
                    return None
                if refused.code < 500 and refused.code not in {403, 429}:
                    raise
                self._closing.wait(0.2)  # it has just been started, and knows no rules yet
        return None

    # records and threads

    def _recorded(self, name: str) -> None:
        """Write the record where agents read it, and tell who waits; under the lock."""
        record = dict(self._managers[name].record)
        path = self.checkpoint(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._managers[name].checkpoint()))
        fresh.replace(path)
        if self._heard is not None:
            self._heard(name, record)
        with self._changed:
            self._changed.notify_all()

    def _submit(self, work: Callable[..., None], *about: object) -> None:
        self._threads.submit(self._guarded, work, *about)

    def _guarded(self, work: Callable[..., None], *about: object) -> None:
        """A failure is kept for the test, in whichever thread it happens."""
        try:
            work(*about)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to fail for it
            if not (self._closing.is_set() and isinstance(error, httpx.TransportError)):
                with self._changed:
                    self._failures.append(error)
                    self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]


_REASONS: Final[dict[str, str]] = {
    "UnexpectedAdmissionError": "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
    "nvidia.com/gpu. Requested: {wanted}, Available: {free}, which is unexpected",
    "OutOfnvidia.com/gpu": "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: {wanted}, "
    "used: {all}, capacity: {all}",
}
"""The kubelet's reasons and messages, as in Kubernetes 1.33."""


def kubelet_node(name: str, gpus: int, *, labels: Mapping[str, str] | None = None) -> Json:
    """A node in mode device-plugin on which such a kubelet runs, with as many GPUs."""
    assert name.startswith(PREFIX)
    return node(name, native=gpus, labels={**DEVICE_PLUGIN, **(labels or {})})


def uuids(name: str, gpus: int) -> list[str]:
    """Those of `objects.inventory`."""
    return [f"GPU-{name}-{minor}" for minor in range(gpus)]


def add_plugin_nodes(stack: Stack, names: Iterable[str], *, gpus: int = 8, **about: Any) -> dict[str, list[str]]:
    """Such nodes, ready, and known to gpuplane; their GPUs, as `Kubelets` takes them. Keywords: `objects.inventory`."""
    made = {name: uuids(name, gpus) for name in names}
    for name in made:
        stack.api.create("/api/v1/nodes", kubelet_node(name, gpus))
        stack.tell_inventory({**inventory(name, gpus=gpus, **about), "mode": DEVICE_PLUGIN["gpu.scheduling/mode"]})

    def ready() -> bool:
        found = {one["metadata"]["name"]: one for one in stack.api.items("/api/v1/nodes")}
        return all(not found[name]["spec"].get("taints") for name in made)

    eventually(ready, seconds=SETTLE_SECONDS, what=f"{len(made)} nodes ready")
    eventually(lambda: not made.keys() & stack.closed_nodes(), seconds=SETTLE_SECONDS, what="their pods known")
    return made
