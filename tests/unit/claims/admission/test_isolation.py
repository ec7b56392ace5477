import copy
from typing import Any

import pytest

from claims.admission.isolation import IsolationRules
from claims.admission.mutate import mutate_pod
from claims.admission.validate_pod import validate_pod
from tests.unit.claims.admission.reviews import CLAIM, KOORD, TRUST, US, USER, literal, operations, patched, pod, review

KEY = "gpu.scheduling/isolation"
MPS, HAMI = {KEY: "mps"}, {KEY: "hami-core"}
FRACTION = {"gpu-fraction": "0.5"}
SHARE = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
THREADS, MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SM, LIMIT, PRELOAD = "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT", "LD_PRELOAD"
LIBRARY = "/usr/local/vgpu/libvgpu.so"
VISIBLE = "metadata.annotations['gpu.scheduling/visible-devices']"
DEVICES = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), VISIBLE)


def of(key: str) -> str:
    return f"metadata.annotations['gpu.scheduling/isolation-{key}']"


BY_MPS = DEVICES | {PIPE: "/tmp/nvidia-mps", THREADS: of("threads"), MEMORY: of("memory")}
BY_HAMI = DEVICES | {PRELOAD: LIBRARY, SM: of("threads"), LIMIT: of("memory")}


def mutated(obj: Any, default: str = "none", **paths: Any) -> Any:
    """The pod as the webhook makes it; a second pass must change nothing."""
    rules = IsolationRules(default=default, **paths)
    response = mutate_pod(review(obj), trust=TRUST, isolation=rules)
    assert response.allowed
    after = patched(obj, response)
    assert operations(mutate_pod(review(after), trust=TRUST, isolation=rules)) == []
    return after


def env_of(container: Any) -> dict[str, str]:
    """Each variable, and what it refers to or is."""
    entries = container.get("env") or []
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in entry else entry["value"]
        for entry in entries
    }


@pytest.mark.parametrize(
    ("obj", "default", "want"),
    [
        pytest.param(pod(annotations=FRACTION), "none", DEVICES, id="nothing by default"),
        pytest.param(pod(annotations=FRACTION), "mps", BY_MPS, id="MPS by the setting"),
        pytest.param(pod(annotations=FRACTION), "hami-core", BY_HAMI, id="HAMi-core by the setting"),
        pytest.param(pod(annotations=FRACTION | {KEY: "none"}), "mps", DEVICES, id="the pod opts out"),
        pytest.param(
            pod(annotations=FRACTION | MPS), "hami-core", BY_MPS, id="the pod's word comes before the setting"
        ),
        pytest.param(pod(annotations=FRACTION | {"mps": "true"}), "none", BY_MPS, id="KAI's word"),
        pytest.param(pod(annotations=MPS, requests=SHARE), "none", BY_MPS, id="Koordinator's share"),
        pytest.param(pod(annotations=HAMI, requests={"nvidia.com/gpumem": "1000"}), "none", BY_HAMI, id="HAMi's share"),
        pytest.param(pod(annotations=CLAIM | MPS), "none", BY_MPS, id="a claim's, whatever it gives"),
        pytest.param(pod(annotations=MPS, requests={"nvidia.com/gpu": "1"}), "none", DEVICES, id="whole GPUs"),
        pytest.param(pod(annotations=MPS, requests={"koordinator.sh/gpu": "100"}), "mps", DEVICES, id="a whole GPU"),
        pytest.param(pod(annotations=MPS, requests={"koordinator.sh/rdma": "50"}), "mps", DEVICES, id="no GPU"),
        pytest.param(
            pod(annotations=FRACTION | MPS, env=[literal(THREADS, "100"), literal(PIPE, "/mine"), literal("A", "1")]),
            "none",
            BY_MPS | {"A": "1"},
            id="the user's own limits are replaced",
        ),
        pytest.param(
            pod(
                annotations=FRACTION | HAMI, env=[literal(PRELOAD, "/lib/a.so /lib/b.so"), literal(f"{LIMIT}_0", "9g")]
            ),
            "none",
            BY_HAMI | {PRELOAD: f"{LIBRARY}:/lib/a.so:/lib/b.so"},
            id="other libraries stay, limits by device go",
        ),
        pytest.param(
            pod(annotations=FRACTION | HAMI, env=[literal(PRELOAD, f"/lib/a.so:{LIBRARY}")]),
            "none",
            BY_HAMI | {PRELOAD: f"/lib/a.so:{LIBRARY}"},
            id="loaded already",
        ),
        pytest.param(
            pod(annotations=FRACTION, env=[literal(THREADS, "30"), literal(f"{LIMIT}_0", "9g")]),
            "none",
            DEVICES | {THREADS: "30", f"{LIMIT}_0": "9g"},
            id="a pod without isolation keeps its own",
        ),
    ],
)
def test_variables(obj: Any, default: str, want: dict[str, str]) -> None:
    """SHARE-8 the containers of shares get the variables of their isolation; a second pass changes nothing."""
    assert env_of(mutated(obj, default)["spec"]["containers"][0]) == want


def hami_pod(names: list[str], **annotations: str) -> Any:
    obj = pod(annotations=annotations, requests={"nvidia.com/gpumem": "1000"})
    first = obj["spec"]["containers"][0]
    obj["spec"]["containers"] = [copy.deepcopy(first) | {"name": name} for name in names]
    return obj


def test_containers_with_devices_of_their_own() -> None:
    """SHARE-8 HAMi plans each container, so each refers to amounts of its own."""
    after = mutated(hami_pod(["a", "b"], **{KEY: "mps"}))
    for container in after["spec"]["containers"]:
        env = env_of(container)
        assert env[THREADS] == of(f"threads.{container['name']}")
        assert env[MEMORY] == of(f"memory.{container['name']}")


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param(
            MPS,
            {
                "gpuplane-mps-pipe": ("/tmp/nvidia-mps", "Directory", "/tmp/nvidia-mps", False),
                "gpuplane-mps-shm": ("/dev/shm", "Directory", "/dev/shm", False),
            },
            id="MPS",
        ),
        pytest.param(
            HAMI,
            {
                "gpuplane-hami-core": ("/usr/local/vgpu", "Directory", "/usr/local/vgpu", True),
                "gpuplane-hami-locks": ("/tmp/vgpulock", "DirectoryOrCreate", "/tmp/vgpulock", False),
            },
            id="HAMi-core",
        ),
        pytest.param({}, {}, id="none"),
    ],
)
def test_directories_of_the_node(annotations: dict[str, str], want: dict[str, Any]) -> None:
    """SHARE-8 every container mounts what its isolation needs of the node, beside what the pod mounts itself."""
    mine = {"name": "data", "mountPath": "/data"}
    obj = pod(annotations=FRACTION | annotations, init=[{"name": "first", "volumeMounts": [mine]}])
    obj["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    spec = mutated(obj)["spec"]
    volumes = {one["name"]: one["hostPath"] for one in spec["volumes"] if one["name"] != "data"}
    for container in (*spec["initContainers"], *spec["containers"]):
        mounts = {one["name"]: one for one in container.get("volumeMounts", ()) if one["name"] != "data"}
        assert {
            name: (volumes[name]["path"], volumes[name]["type"], one["mountPath"], one.get("readOnly", False))
            for name, one in mounts.items()
        } == want
    assert set(volumes) == set(want)
    assert mine in spec["initContainers"][0]["volumeMounts"]


def test_paths_by_setting() -> None:
    """SHARE-8 the directories of the nodes are settings."""
    spec = mutated(pod(annotations=FRACTION | MPS), mps_pipe="/run/mps/pipe", mps_shm="/run/mps/shm")["spec"]
    assert [one["hostPath"]["path"] for one in spec["volumes"]] == ["/run/mps/pipe", "/run/mps/shm"]
    assert env_of(spec["containers"][0])[PIPE] == "/run/mps/pipe"
    assert [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]] == ["/run/mps/pipe", "/dev/shm"]
    spec = mutated(pod(annotations=FRACTION | HAMI), hami_core="/opt/vgpu")["spec"]
    assert env_of(spec["containers"][0])[PRELOAD] == "/opt/vgpu/libvgpu.so"


def mounting(path: str, name: str = "mine") -> Any:
    obj = pod(annotations=FRACTION | MPS)
    obj["spec"]["volumes"] = [{"name": name, "emptyDir": {}}]
    obj["spec"]["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": path}]
    return obj


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(
            pod(annotations=FRACTION | {KEY: "mig"}), "must be one of none, mps, hami-core", id="another word"
        ),
        pytest.param(pod(annotations=FRACTION | {KEY: ""}), "must be one of none, mps, hami-core", id="an empty word"),
        pytest.param(
            pod(annotations={KEY: "mig"}, requests={"nvidia.com/gpu": "1"}),
            "(rule isolation)",
            id="for a whole GPU too",
        ),
        pytest.param(mounting("/dev/shm/"), "mounts /dev/shm/ itself", id="shared memory of its own"),
        pytest.param(mounting("/tmp/nvidia-mps"), "mounts /tmp/nvidia-mps itself", id="a pipe directory of its own"),
        pytest.param(mounting("/data", "gpuplane-mps-pipe"), "volume gpuplane-mps-pipe is gpuplane's", id="our name"),
        pytest.param(
            hami_pod(["a" * 47, "b"], **{KEY: "mps"}), "is too long for mps", id="no room for an annotation of its own"
        ),
    ],
)
def test_refused(obj: Any, want: str) -> None:
    """SHARE-8 what could not work is refused when the pod is created."""
    after = patched(obj, mutate_pod(review(obj), trust=TRUST))
    for one in (obj, after):
        verdict = validate_pod(review(one), trust=TRUST)
        assert not verdict.allowed
        assert verdict.status is not None
        assert want in verdict.status.message


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        pytest.param(pod(annotations=FRACTION | MPS), 0, id="a share"),
        pytest.param(pod(annotations=CLAIM | MPS), 0, id="a claim's"),
        pytest.param(pod(annotations=MPS, requests={"nvidia.com/gpu": "1"}), 1, id="whole GPUs"),
        pytest.param(pod(annotations={KEY: "none"}, requests={"nvidia.com/gpu": "1"}), 0, id="none for whole GPUs"),
        pytest.param(pod(annotations=MPS, requests={"koordinator.sh/rdma": "50"}), 1, id="no GPU"),
        pytest.param(mounting("/data"), 0, id="a mount elsewhere"),
    ],
)
def test_warnings(obj: Any, want: int) -> None:
    """SHARE-8 isolation of anything but shares of GPUs is ignored with a warning."""
    verdict = validate_pod(review(patched(obj, mutate_pod(review(obj), trust=TRUST))), trust=TRUST)
    assert verdict.allowed
    assert len([one for one in verdict.warnings or () if KEY in one]) == want


@pytest.mark.parametrize("key", [of("threads"), of("memory"), of("threads.main"), of("memory.main")])
def test_forged_amounts(key: str) -> None:
    """SHARE-8 only gpuplane writes the values."""
    name = key.split("'")[1]
    obj = pod(annotations=FRACTION | MPS | {name: "100"})
    assert not validate_pod(review(obj, user=USER), trust=TRUST).allowed
    assert not validate_pod(review(obj, user=KOORD), trust=TRUST).allowed
    assert validate_pod(review(obj, user=US), trust=TRUST).allowed
    bare = pod(annotations=FRACTION | MPS)
    assert not validate_pod(review(obj, old=bare, operation="UPDATE"), trust=TRUST).allowed
