"""Keeps the containers of shares to their amounts, by CUDA MPS or HAMi-core (SHARE-8).

The mutating webhook (`mutate`) sets variables that refer to annotations of the Binding (`claims.dialects.isolation`),
and mounts what the node provides: the directories of the MPS control daemon, or HAMi-core's library. The validating
webhook (`validate_pod`) refuses what could not work. Invariants: a pod without shares of GPUs is not changed; twice
gives no second patch. Whether a GpuClaim gives shares is not known at admission, so its pods are always changed.

It is a limit between pods that mean well: a program may unset its own variables. Pods keep the values that their
containers started with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from claims.admission.counted import containers_by_path
from claims.admission.env import EnvEntry
from claims.dialects.own_keys import HAMI_THREADS, MPS_THREADS, Isolation, container_key
from claims.dialects.parse import containers_apart, no_claim, parse_pod
from claims.dialects.refused import annotation_field
from claims.dialects.request import DeviceRequest, Dialect, Refusal
from kube.device_types import GPU
from kube.keys import ISOLATION, ISOLATION_MEMORY, ISOLATION_THREADS
from kube.objects import Container, Pod, Volume

MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
MPS_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
HAMI_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
PRELOAD: Final = "LD_PRELOAD"
KAI_MPS: Final = Isolation.MPS.value
"""KAI's annotation for it."""
LIBRARY: Final = "libvgpu.so"
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - mounted, where MPS has its clients' shared memory
LOCKS: Final = "/tmp/vgpulock"  # noqa: S108 - where HAMi-core has its lock between containers
_DEVICES_MOST: Final = 16
"""HAMi-core's limit of devices."""
LIMITED_APART: Final = frozenset(
    (
        *(f"{name}_{ordinal}" for name in (HAMI_MEMORY, HAMI_THREADS) for ordinal in range(_DEVICES_MOST)),
        "CUDA_DISABLE_CONTROL",
    )
)
"""Variables that HAMi-core reads before ours: by device, and the switch that turns it off."""


class IsolationRules(msgspec.Struct, frozen=True):
    """The settings. `default`: of pods without the annotation; the others are paths on the nodes."""

    default: str = Isolation.NONE.value
    mps_pipe: str = "/tmp/nvidia-mps"  # noqa: S108 - the MPS control daemon's own default
    mps_shm: str = SHARED_MEMORY
    hami_core: str = "/usr/local/vgpu"

    def mounts(self, how: Isolation) -> tuple[Mount, ...]:
        """What a container needs of its node."""
        if how is Isolation.MPS:
            pipe = Mount("gpuplane-mps-pipe", self.mps_pipe, self.mps_pipe)
            return pipe, Mount("gpuplane-mps-shm", self.mps_shm, SHARED_MEMORY)
        if how is Isolation.HAMI_CORE:
            locks = Mount("gpuplane-hami-locks", LOCKS, LOCKS, made=True)
            return Mount("gpuplane-hami-core", self.hami_core, self.hami_core, read_only=True), locks
        return ()


NO_ISOLATION: Final = IsolationRules()


class Mount(msgspec.Struct, frozen=True):
    """A directory of the node in a container. `made`: the kubelet makes it where it is missing."""

    volume: str
    host_path: str
    path: str
    read_only: bool = False
    made: bool = False

    def volume_manifest(self) -> dict[str, Any]:
        """The volume of the pod."""
        kind = "DirectoryOrCreate" if self.made else "Directory"
        return {"name": self.volume, "hostPath": {"path": self.host_path, "type": kind}}

    def mount_manifest(self) -> dict[str, Any]:
        """The mount of a container."""
        return {"name": self.volume, "mountPath": self.path} | ({"readOnly": True} if self.read_only else {})


def isolation_wanted(pod: Pod, dialect: str, rules: IsolationRules) -> Isolation:
    """How the pod's shares are to be kept to their amounts."""
    stated = _stated(pod, dialect) or rules.default
    if stated not in (Isolation.MPS, Isolation.HAMI_CORE) or not _may_share(pod, dialect):
        return Isolation.NONE
    return Isolation(stated)


def _stated(pod: Pod, dialect: str) -> str:
    """The pod's own word, empty without one. KAI's pods may say it by KAI's annotation."""
    by_kai = Isolation.MPS.value if dialect == Dialect.KAI and pod.annotations.get(KAI_MPS) == "true" else ""
    return pod.annotations.get(ISOLATION, by_kai)


def _may_share(pod: Pod, dialect: str) -> bool:
    """Whether the pod asks for shares of GPUs, or for what a claim says."""
    if dialect == Dialect.GPUCLAIM:
        return True
    request = parse_pod(pod, find_claim=no_claim)
    return isinstance(request, DeviceRequest) and any(ask.type == GPU and not ask.whole for ask in request.asks)


def isolation_entries(
    container: Container, how: Isolation, rules: IsolationRules, *, apart: bool
) -> tuple[EnvEntry, ...]:
    """The env entries of a container. `apart`: it has devices of its own, and annotations of its own."""
    threads, memory = (
        container_key(container.name, of=key) if apart else key for key in (ISOLATION_THREADS, ISOLATION_MEMORY)
    )
    if how is Isolation.MPS:
        return (
            EnvEntry(MPS_PIPE, rules.mps_pipe),
            EnvEntry(MPS_THREADS, key=threads),
            EnvEntry(MPS_MEMORY, key=memory),
        )
    if how is Isolation.HAMI_CORE:
        return (
            EnvEntry(PRELOAD, _preloaded(container, f"{rules.hami_core.rstrip('/')}/{LIBRARY}")),
            EnvEntry(HAMI_THREADS, key=threads),
            EnvEntry(HAMI_MEMORY, key=memory),
        )
    return ()


def _preloaded(container: Container, library: str) -> str:
    """Our library, and those that the container loads itself."""
    own = next((entry.value for entry in reversed(container.env or []) if entry.name == PRELOAD), None) or ""
    libraries = own.replace(":", " ").split()
    return own if library in libraries else ":".join((library, *libraries))


def mounts_patch(pod: Pod, how: Isolation, rules: IsolationRules) -> Iterator[dict[str, Any]]:
    """JSONPatch operations that add the missing volumes, and mount them in every container."""
    mounts = rules.mounts(how)
    there = {volume.name for volume in pod.spec.volumes or ()}
    volumes = [mount.volume_manifest() for mount in mounts if mount.volume not in there]
    yield from _added("/spec/volumes", volumes, empty=pod.spec.volumes is None)
    for path, container in containers_by_path(pod):
        taken = {one.mount_path.rstrip("/") for one in container.volume_mounts or ()}
        missing = [mount.mount_manifest() for mount in mounts if mount.path.rstrip("/") not in taken]
        yield from _added(f"{path}/volumeMounts", missing, empty=container.volume_mounts is None)


def _added(path: str, values: list[dict[str, Any]], *, empty: bool) -> Iterator[dict[str, Any]]:
    if empty and values:
        yield {"op": "add", "path": path, "value": values}
    else:
        yield from ({"op": "add", "path": f"{path}/-", "value": value} for value in values)


def isolation_refusal(pod: Pod, request: DeviceRequest, rules: IsolationRules) -> Refusal | None:
    """Why the pod cannot be kept to its amounts as it asks, None where it can."""
    stated = pod.annotations.get(ISOLATION)
    field = annotation_field(ISOLATION)
    if stated is not None and stated not in set(Isolation):
        return Refusal("isolation", f"annotation {ISOLATION} must be one of {', '.join(Isolation)}", field)
    how = isolation_wanted(pod, request.dialect, rules)
    if how is Isolation.NONE:
        return None
    for name in sorted(containers_apart(pod, request.dialect)):
        if container_key(name, of=ISOLATION_MEMORY) == ISOLATION_MEMORY:
            return Refusal("isolation-container", f"the name of container {name} is too long for {how}", field)
    mounts = {mount.volume: mount for mount in rules.mounts(how)}
    for volume in pod.spec.volumes or ():
        if volume.name in mounts and not _is(volume, mounts[volume.name]):
            return Refusal("isolation-volume", f"volume {volume.name} is gpuplane's; name it otherwise", "spec.volumes")
    paths = {mount.path.rstrip("/"): mount for mount in mounts.values()}
    for container in pod.all_containers:
        for one in container.volume_mounts or ():
            wanted = paths.get(one.mount_path.rstrip("/"))
            if wanted is not None and one.name != wanted.volume:
                return Refusal(
                    "isolation-mount",
                    f"container {container.name} mounts {one.mount_path} itself, which {how} needs of the node;"
                    f" leave the mount out, or set {ISOLATION} to none",
                    "spec.containers",
                )
    return None


def _is(volume: Volume, mount: Mount) -> bool:
    return (volume.host_path or {}).get("path") == mount.host_path


def isolation_warnings(pod: Pod, request: DeviceRequest) -> list[str]:
    """What is ignored of what the pod says of isolation."""
    stated = pod.annotations.get(ISOLATION)
    if stated in (Isolation.MPS, Isolation.HAMI_CORE) and not _may_share(pod, request.dialect):
        return [f"annotation {ISOLATION} is for shares of GPUs; the pod asks for none, so it is ignored"]
    return []
