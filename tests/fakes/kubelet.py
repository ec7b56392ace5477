"""Kubelets with a device plugin, beside the stand-in API server: they give GPUs to reservation pods and pods by
`nvidia.com/gpu`, and write what the program in a reservation pod would.

    with Kubelets(server, {"n1": ["GPU-n1-0", "GPU-n1-1"]}) as kubelets:
        kubelets.choose("GPU-n1-1")        # the next choices; the lowest free GPU otherwise
        kubelets.silent = True             # pods start, and nothing is told

One thread follows the store. A pod that asks for more than is free fails as with a real kubelet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.fakes.apikinds import PODS, ApiFault, Object
from tests.fakes.apiserver import ApiServer

GPU = "nvidia.com/gpu"
TOLD = "run.ai/reserve_for_gpu_index"
MERGE = "application/merge-patch+json"
RESERVATIONS = "gpuplane-reservation"


class Kubelets:
    """The kubelets of some nodes. `given`: UID of a pod → its GPUs."""

    def __init__(self, server: ApiServer, gpus: Mapping[str, Sequence[str]]) -> None:
        self.server = server
        self.gpus = {node: list(uuids) for node, uuids in gpus.items()}
        self.given: dict[str, tuple[str, list[str]]] = {}
        self.refused: list[str] = []
        self.silent = False
        self.refuses = False
        """Pods are refused, as if no GPU were left."""
        self.lie = ""
        """What every program inside tells instead of the truth."""
        self._choices: deque[str] = deque()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        with self.server.store.changed:
            self.server.store.changed.notify_all()
        self._thread.join(10)

    def choose(self, *uuids: str) -> None:
        """The GPUs that are given next, where they are free."""
        self._choices.extend(uuids)

    def tell(self, name: str, text: str) -> None:
        """What the program inside would write."""
        body = {"metadata": {"annotations": {TOLD: text}}}
        self.server.store.patch(PODS, RESERVATIONS, name, body, content_type=MERGE)

    def next_reservation(self, *, seconds: float = 10.0) -> str:
        """Wait until there is one reservation pod that runs; its name."""
        store = self.server.store
        with store.changed:
            found = store.changed.wait_for(
                lambda: [name for name, pod in self.reservations().items() if _phase(pod) == "Running"], seconds
            )
        (name,) = found
        return str(name)

    def reservations(self) -> dict[str, Object]:
        """The reservation pods, by name."""
        return {name: pod for (namespace, name), pod in self.server.pods.items() if namespace == RESERVATIONS}

    def free(self, node: str) -> list[str]:
        """GPUs that nobody has."""
        taken = {uuid for where, uuids in self.given.values() if where == node for uuid in uuids}
        return [uuid for uuid in self.gpus[node] if uuid not in taken]

    def _run(self) -> None:
        store = self.server.store
        while not self._stopped:
            with store.changed:
                if not self._step():
                    store.changed.wait(1.0)

    def _step(self) -> bool:
        """Look at every pod once; whether anything was done."""
        pods = {str(pod["metadata"]["uid"]): pod for pod in list(self.server.pods.values())}
        ended = [uid for uid in self.given if uid not in pods or _phase(pods[uid]) in {"Failed", "Succeeded"}]
        for uid in ended:
            del self.given[uid]
        done = bool(ended)
        for uid, pod in pods.items():
            node, wanted = pod["spec"].get("nodeName", ""), _wanted(pod)
            if node in self.gpus and wanted and uid not in self.given and _phase(pod) not in {"Failed", "Succeeded"}:
                self._admit(pod, uid, node, wanted)
                done = True
        return done

    def _admit(self, pod: Object, uid: str, node: str, wanted: int) -> None:
        meta = pod["metadata"]
        free = self.free(node)
        if self.refuses or len(free) < wanted:
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": f"only {len(free)} GPUs left"}
            self.refused.append(meta["name"])
            self._status(meta, status)
            return
        chosen: list[str] = []
        while self._choices and len(chosen) < wanted and self._choices[0] in free:
            chosen.append(self._choices.popleft())
        chosen += [uuid for uuid in free if uuid not in chosen][: wanted - len(chosen)]
        self.given[uid] = (node, chosen)
        self._status(meta, {"phase": "Running"})
        if meta["namespace"] == RESERVATIONS and not self.silent:
            self.tell(meta["name"], self.lie or ",".join(sorted(chosen)))

    def _status(self, meta: Object, status: Object) -> None:
        try:
            self.server.store.patch(
                PODS, meta["namespace"], meta["name"], {"status": status}, content_type=MERGE, subresource="status"
            )
        except ApiFault:
            return  # the pod has gone


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _wanted(pod: Object) -> int:
    limits = (one.get("resources", {}).get("limits") or {} for one in pod["spec"].get("containers", ()))
    return sum(int(one.get(GPU, 0)) for one in limits)
