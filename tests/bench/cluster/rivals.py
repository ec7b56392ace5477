"""The other schedulers: kube-scheduler with Dynamic Resource Allocation, and with an extender that does nothing but
write.
"""

from __future__ import annotations

import sys
from collections import Counter

import httpx
import msgspec

from tests.bench.cluster.contender import CLEAN_SECONDS, Contender, Json, Size
from tests.bench.cluster.floor import Configuration
from tests.bench.cluster.ground import GPUS, NAMESPACE, Ground
from tests.bench.cluster.timing import BEGIN, TIMES
from tests.cluster.controlplane import chart
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.program import Program, listens
from tests.cluster.controlplane.stack import eventually

DRIVER = "gpu.bench.example"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates"
ALLOCATED = "gpu.scheduling/allocated"
VISIBLE = "gpu.scheduling/visible-devices"


class WithDra(Contender):
    """kube-scheduler with Dynamic Resource Allocation: a claim from a template for each pod."""

    name = "dra"
    title = "kube-scheduler with DRA, a claim a pod from a template"

    def open(self) -> None:
        """The class and the nodes' devices."""
        cel = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}}
        self.ground.api.create(f"{DRA}/deviceclasses", {**body, "spec": {"selectors": [cel]}})
        self.ground.for_each(
            self.ground.nodes, lambda name: self.ground.api.create(f"{DRA}/resourceslices", _slice(name))
        )

    def prepare(self, size: Size) -> None:
        """The template."""
        exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": size.count}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpus", "namespace": NAMESPACE},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
        }
        self.ground.api.create(TEMPLATES, body)

    def bodies(self, size: Size) -> list[Json]:
        """Pods that name the template."""
        made = [pod(f"pod-{number:05d}", NAMESPACE, scheduler=self.scheduler) for number in range(size.pods)]
        for one in made:
            one["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
            one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
        return made

    def wait_for_pods(self, size: Size) -> None:
        """The controller manager makes the claims and tells the pods of them, before the scheduler starts."""

        def told() -> bool:
            return self._claims() >= size.pods and all(one.status.resource_claim_statuses for one in self.ground.pods())

        eventually(told, seconds=CLEAN_SECONDS, what="every pod's claim made")

    def check(self, size: Size) -> None:
        """No device allocated twice."""
        super().check(size)
        answer = self.ground.api.http.get(CLAIMS)
        given = Counter(
            (result["pool"], result["device"])
            for one in msgspec.json.decode(answer.content)["items"]
            for result in one["status"]["allocation"]["devices"]["results"]
        )
        assert len(given) == size.pods * size.count, "devices are missing"
        assert max(given.values()) == 1, "a device was given twice"

    def clean(self, size: Size) -> None:
        """The claims go once the controller manager has seen their pods go."""
        super().clean(size)
        self.ground.api.delete(CLAIMS)
        self.ground.api.delete(TEMPLATES)
        eventually(lambda: not self._claims(), seconds=CLEAN_SECONDS, what="every claim gone")

    def close(self) -> None:
        """Class and devices."""
        self.ground.api.delete(f"{DRA}/resourceslices")
        self.ground.api.delete(f"{DRA}/deviceclasses/{DRIVER}")

    def _claims(self) -> int:
        found = self.ground.api.get(f"{CLAIMS}?limit=1")
        return len(found["items"]) + int(found["metadata"].get("remainingItemCount", 0))


def _slice(name: str) -> Json:
    devices = [
        {"name": f"gpu-{minor}", "attributes": {"uuid": {"string": f"GPU-{name}-{minor}"}}} for minor in range(GPUS)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-gpus"},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


class ConstantExtender(Contender):
    """The floor: the same writes as gpuplane's and no thought."""

    name = "floor"
    title = "a constant extender that makes gpuplane's writes"
    scheduler = "gpu-scheduler"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.connections = 1000
        self._program: Program | None = None
        self._port = 0

    def prepare(self, size: Size) -> None:
        """The extender, with an empty round robin."""
        self._port = self.ground.free_port()
        given = Configuration(
            port=self._port,
            api=self.ground.plane.url,
            ca=str(self.ground.plane.authority.certificate),
            token=self.ground.gpuplane_token(),
            namespace=chart.NAMESPACE,
            nodes=self.ground.nodes,
            gpus=GPUS,
            count=size.count,
            connections=self.connections,
        )
        path = self.ground.folder / "floor.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(given))
        port = self._port
        command = [sys.executable, "-m", "tests.bench.cluster.floor", str(path)]
        self._program = Program("floor", command, folder=self.ground.folder, ready=lambda: listens(port))
        self._program.start()

    def bodies(self, size: Size) -> list[Json]:
        """With the references that gpuplane's webhook puts into the env, so that pods are alike in size."""
        made = super().bodies(size)
        reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}}
        for one in made:
            one["spec"]["containers"][0]["env"] = [
                {"name": name, "valueFrom": reference} for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
            ]
        return made

    def start_scheduler(self) -> Program:
        """As the chart has it, but asking the constant extender."""
        return self.ground.start_extended_scheduler(extender_port=self._port)

    def pids(self) -> dict[str, int]:
        """The extender."""
        return {} if self._program is None else {"extender": self._program.pid}

    def begin(self) -> None:
        """Forget times of requests."""
        httpx.post(f"http://127.0.0.1:{self._port}{BEGIN}").raise_for_status()

    def times(self) -> Json:
        """Of the extender."""
        found: Json = httpx.get(f"http://127.0.0.1:{self._port}{TIMES}").json()
        return found

    def check(self, size: Size) -> None:
        """What the annotations say was given once."""
        super().check(size)
        given = Counter(one.metadata.annotations.get(ALLOCATED, "") for one in self.ground.pods())
        assert "" not in given, "a pod was not told its devices"
        assert max(given.values()) == 1, "a device was given twice"

    def clean(self, size: Size) -> None:
        """Pods and Leases."""
        if self._program is not None:
            self._program.stop()
            self._program = None
        super().clean(size)
        self.ground.drop_leases()
