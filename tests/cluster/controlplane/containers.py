"""A pod on an imitated kubelet: its sandbox, what it asks for, and its container's program.

Used by `kubelet`. The program gets what the kubelet, the device plugin and the driver of a real node give it.
"""

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import Program

GPU: Final = "nvidia.com/gpu"


@dataclass
class Sandbox:
    """A pod on its node."""

    namespace: str
    name: str
    uid: str
    node: str
    gpus: tuple[str, ...]
    program: Program | None = None
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def start_program(plane: ControlPlane, folder: Path, sandbox: Sandbox, pod: Json, shown: Sequence[str]) -> Program:
    """The container's program with what the kubelet, the device plugin and the driver give it."""
    account = folder / "account"
    account.mkdir(parents=True, exist_ok=True)
    path = f"/api/v1/namespaces/{sandbox.namespace}/serviceaccounts/{pod['spec']['serviceAccountName']}/token"
    bound = {"kind": "Pod", "apiVersion": "v1", "name": sandbox.name, "uid": sandbox.uid}
    spec = {"expirationSeconds": 3607, "boundObjectRef": bound}
    (account / "token").write_text(plane.api.create(path, {"spec": spec})["status"]["token"])
    (account / "ca.crt").write_text(plane.authority.pem)
    for number, uuid in enumerate(shown):
        file = folder / "nvidia" / "gpus" / f"0000:{0x10 + number:02x}:00.0" / "information"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n")
    container = pod["spec"]["containers"][0]
    environment = {
        **{one["name"]: _value(one, pod) for one in container.get("env", ())},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
        "NVIDIA_VISIBLE_DEVICES": ",".join(shown),
        "GPUPLANE_SERVICE_ACCOUNT_DIR": str(account),
        "GPUPLANE_NVIDIA_PROC": str(folder / "nvidia"),
    }
    made = Program("reserve", container["command"], folder=folder, environment=lambda: environment)
    made.start(wait=False)
    return made


def asked(pod: Json) -> int:
    """How many GPUs the pod asks for."""
    return sum(int(one.get("resources", {}).get("limits", {}).get(GPU, 0)) for one in pod["spec"]["containers"])


def is_reservation(pod: Json) -> bool:
    """Whether its container runs the program of reservation pods."""
    return "agent.reserve" in pod["spec"]["containers"][0].get("command", ())


def _value(variable: Json, pod: Json) -> str:
    """What the kubelet makes of an env entry."""
    if "value" in variable:
        return str(variable["value"])
    field_path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    return str(pod["metadata"].get(field_path.removeprefix("metadata."), ""))


def running(pod: Json) -> Json:
    """The status of a pod whose containers all run."""
    now = pod["metadata"]["creationTimestamp"]
    kinds = ("Initialized", "Ready", "ContainersReady")
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": "127.0.0.1",
        "conditions": [
            *(one for one in pod["status"].get("conditions", ()) if one["type"] not in kinds),
            *({"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds),
        ],
        "containerStatuses": [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for one in pod["spec"]["containers"]
        ],
    }
