"""A whole cluster with gpuplane in it: the control plane, the chart's objects, gpuplane's processes and the scheduler
that asks them.

Used by the fixtures of the cluster tests, by `make cluster-up` and by `make bench-cluster`.
"""

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.controlplane import chart
from tests.cluster.controlplane.api import Api, ApiRefused, Json
from tests.cluster.controlplane.gpuplane import Doors, Gpuplane
from tests.cluster.controlplane.kubernetes import SYSTEM_NAMESPACES, ControlPlane
from tests.cluster.controlplane.objects import inventory, node
from tests.cluster.controlplane.program import Program

SERVICE_ACCOUNTS = {"web": "gpuplane", "worker": "gpuplane-worker", "watch": "gpuplane-watch"}
"""As the chart calls them, by process."""
CLAIMS = "/apis/gpu.scheduling/v1/gpuclaims"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{chart.NAMESPACE}/leases"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SETTLE_SECONDS = 60.0


class Stack:
    """One cluster and the gpuplane that serves it."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.api: Api = plane.api
        self.folder = folder
        self.first_apiserver = 0
        """Process id of the API server at the first `install`."""
        self.doors = Doors.fresh(plane.authority)
        self.tls_doors = Doors.fresh(plane.authority, tls=True)
        self.kubeconfigs: dict[str, Path] = {}
        self._gpuplane: Gpuplane | None = None
        self.scheduler: Program | None = None
        self.adopting: list[str] = []
        """Namespaces of KAI's reservation pods, at the next `install`; they have to be there."""

    @property
    def gpuplane(self) -> Gpuplane:
        """The installation that runs. AssertionError where none does."""
        assert self._gpuplane is not None, "no gpuplane was started"
        return self._gpuplane

    # installing

    def values(self, doors: Doors, *, scope: str = "everywhere") -> Json:
        """The chart's values for a gpuplane that runs as processes beside the cluster, behind these doors.

        `scope`: of its webhooks.
        """
        tls: Json = {}
        if doors.tls:
            client = self.plane.authority.issue("gpu-scheduler")
            tls = {
                "enabled": True,
                "certFile": str(client.certificate),
                "keyFile": str(client.key),
                "caFile": str(self.plane.authority.certificate),
            }
        return {
            "reservation": {"adopt": self.adopting},
            "webhooks": {"url": doors.webhook_url, "caBundle": self.plane.authority.pem, "scope": scope},
            "scheduler": {
                "kubeconfig": str(self.plane.scheduler_kubeconfig),
                "leaderElect": False,
                "extender": {"urlPrefix": doors.extender_url, "tls": tls},
            },
        }

    def install(self, doors: Doors | None = None, *, scope: str = "everywhere") -> None:
        """Apply what the chart renders, as the administrator, and take the ServiceAccounts' credentials."""
        used = doors or self.doors
        self.first_apiserver = self.first_apiserver or self.plane.apiserver.pid
        self.plane.namespace(chart.NAMESPACE)
        values = self.values(used, scope=scope)
        # without a scheduler of its own the ServiceAccount has gpuplane's own rights and nothing more; ours is
        # system:kube-scheduler
        rendered = chart.render({**values, "scheduler": {**values["scheduler"], "enabled": False}})
        # with its Pod Security level
        self.api.apply(*chart.of_kinds(rendered, "Namespace"))
        self.api.apply(*chart.cluster_objects(rendered))
        self.kubeconfigs = self.accounts()

    def accounts(self, *, url: str = "") -> dict[str, Path]:
        """A kubeconfig for each process that speaks to the API server; `url`: another address of that, such as a
        proxy's.
        """
        return {
            process: self.plane.kubeconfig(
                f"{account}{'-elsewhere' if url else ''}",
                self.plane.service_account_token(chart.NAMESPACE, account),
                url=url,
            )
            for process, account in SERVICE_ACCOUNTS.items()
        }

    def start_gpuplane(
        self,
        *,
        vendor: str = "sqlite",
        replicas: int = 1,
        workers: int = 1,
        settings: Mapping[str, str] | None = None,
        kubeconfigs: Mapping[str, Path] | None = None,
        doors: Doors | None = None,
        fronted: bool = False,
    ) -> Gpuplane:
        """A new installation, empty; the one before must have been closed."""
        self._gpuplane = Gpuplane(
            self.folder / f"gpuplane-{vendor}-{time.time_ns()}",
            kubeconfigs=kubeconfigs or self.kubeconfigs,
            doors=doors or self.doors,
            vendor=vendor,
            replicas=replicas,
            workers=workers,
            settings=settings,
            fronted=fronted,
        )
        self._gpuplane.start()
        return self._gpuplane

    def close_gpuplane(self) -> None:
        """Stop the installation and drop its database."""
        if self._gpuplane is not None:
            self._gpuplane.close()
            self._gpuplane = None

    def start_scheduler(self, doors: Doors | None = None) -> Program:
        """kube-scheduler with the configuration and the feature gates that the chart ships."""
        used = doors or self.doors
        path = self.folder / f"scheduler-{'tls' if used.tls else 'loopback'}.yaml"
        objects = chart.render(self.values(used))
        path.write_text(chart.scheduler_configuration(objects))
        self.scheduler = self.plane.scheduler(path, arguments=chart.scheduler_gates(objects))
        self.scheduler.start()
        return self.scheduler

    def stop_scheduler(self) -> None:
        """Stop it for good."""
        if self.scheduler is not None:
            self.plane.forget_scheduler(self.scheduler)
            self.scheduler = None

    # what tests put in

    def add_nodes(self, names: Iterable[str], *, labels: Mapping[str, str] | None = None, **about: Any) -> list[str]:
        """Nodes with devices (keywords of `objects.inventory`), ready, and advertised where the scheduler sees it."""
        made = list(names)

        def add(name: str) -> None:
            self.api.create("/api/v1/nodes", node(name, labels=labels))
            self.tell_inventory(inventory(name, **about))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(add, made))
        wanted = set(made)

        def ready() -> bool:
            there = {one["metadata"]["name"] for one in self.api.items("/api/v1/nodes") if _schedulable(one)}
            return wanted <= there

        eventually(ready, seconds=SETTLE_SECONDS, what=f"{len(made)} nodes ready, with their devices advertised")
        eventually(
            lambda: not wanted & self.closed_nodes(),
            seconds=SETTLE_SECONDS,
            what="their devices opened, the pods there being known",
        )
        return made

    def closed_nodes(self) -> set[str]:
        """Nodes with devices in the hands of somebody outside the ledger, as gpuplane tells."""
        found: set[str] = set()
        page = "/api/v1/devices/?presence=present&page_size=1000"
        while page:
            answer = self.gpuplane.rest.get(page).json()
            found |= {one["node"] for one in answer["results"] if one["stranger"]}
            page = answer["next"] or ""
        return found

    def tell_inventory(self, body: Json) -> None:
        """What an agent, or an administrator, says that a node has."""
        answer = self.gpuplane.rest.put(f"/api/v1/nodes/{body['name']}/inventory/", json=body)
        assert answer.status_code in {200, 201}, answer.text

    def add_pods(self, pods: Sequence[Json]) -> list[Json]:
        """Create them, several at once; as stored."""

        def create(body: Json) -> Json:
            return self.api.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/pods", body)

        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(create, pods))

    def get_pod(self, namespace: str, name: str) -> Json:
        """A pod as it is now."""
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def leases(self) -> dict[str, Json]:
        """The Leases of gpuplane's namespace that stand for devices, by name."""
        found = self.api.items(LEASES)
        return {one["metadata"]["name"]: one for one in found if one["metadata"]["name"] != LEADER}

    @contextmanager
    def kubelets_asleep(self) -> Iterator[None]:
        """Nobody plays the kubelet: what is told to go does not end. The nodes stay ready, since their Leases are
        renewed.
        """
        awake = threading.Event()
        failures: list[Exception] = []

        def renew() -> None:
            try:
                while not awake.wait(1.0):
                    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                    for one in self.api.items(NODE_LEASES):
                        self.api.patch(f"{NODE_LEASES}/{one['metadata']['name']}", {"spec": {"renewTime": moment}})
            except Exception as error:  # noqa: BLE001 - told to the test below
                failures.append(error)

        thread = threading.Thread(target=renew, name="node-leases")
        self.plane.kwok.pause()
        thread.start()
        try:
            yield
        finally:
            awake.set()
            thread.join()
            self.plane.kwok.resume()
        assert not failures, failures

    def namespaces(self) -> list[str]:
        """Those that tests made."""
        names = [one["metadata"]["name"] for one in self.api.items("/api/v1/namespaces")]
        return [name for name in names if name not in (*SYSTEM_NAMESPACES, chart.NAMESPACE)]

    def clear(self) -> None:
        """Take away what a test put in: pods, claims, nodes; returns when the ledger holds nothing."""
        for namespace in self.namespaces():
            self.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
            with suppress(ApiRefused):
                self.api.delete(f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims")
        eventually(
            lambda: (
                not [
                    one
                    for one in self.api.items("/api/v1/pods")
                    if one["metadata"]["namespace"] not in SYSTEM_NAMESPACES
                ]
            ),
            seconds=SETTLE_SECONDS,
            what="every pod gone",
        )
        self.api.delete("/api/v1/nodes")

    def renew(self) -> None:
        """An installation that knows nothing in the place of one that is unfit, behind the same doors; its Leases are
        taken away.
        """
        self.api.delete(LEASES)
        self.gpuplane.reinstall()

    def close(self) -> None:
        """Stop gpuplane and the scheduler; the control plane is its owner's."""
        self.stop_scheduler()
        self.close_gpuplane()


LEADER = "gpuplane-kube-scheduler"
"""The Lease by which the chart's kube-schedulers elect their leader."""


@contextmanager
def running_stack() -> Iterator[Stack]:
    """A cluster of its own with gpuplane and its scheduler, which ends with the block; for benches."""
    plane = ControlPlane(Path(tempfile.mkdtemp(prefix="gpuplane-bench-")))
    stack = Stack(plane, plane.folder)
    try:
        plane.start()
        stack.install()
        stack.start_gpuplane()
        stack.start_scheduler()
        yield stack
    finally:
        stack.close()
        plane.stop()
        shutil.rmtree(plane.folder, ignore_errors=True)


def eventually(true: Callable[[], object], *, seconds: float, what: str) -> float:
    """Ask until it is true; the seconds that it took.

    For what announces itself to nobody. AssertionError after `seconds`.
    """
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


WARNINGS_SHOWN: Final = 15
"""Of each process, the last ones."""


def keep_logs(plane: ControlPlane, stack: Stack | None, place: Path) -> None:
    """Copy every log to `place`, for the one who looks into a failure, and print gpuplane's last warnings, or the last
    lines of what does not run: pytest's report outlives the machine.
    """
    place.mkdir(parents=True, exist_ok=True)
    programs = [*plane.programs, *(stack.gpuplane.programs if stack is not None and stack._gpuplane else [])]
    for one in programs:
        if one.log.exists():
            shutil.copyfile(one.log, place / one.log.name)
    for log in plane.folder.glob("*.log"):  # of programs that a test started beside them
        shutil.copyfile(log, place / log.name)
    if stack is not None and stack._gpuplane:
        keep_state(stack, place)
        for one in stack.gpuplane.programs:
            if not one.log.exists():
                continue
            lines = [line[:400] for line in one.log.read_text(errors="replace").splitlines()]
            shown = [line for line in lines if "[warning" in line or "[error" in line] if one.alive else lines
            state = "" if one.alive else " (not running)"
            print(f"{one.log.name}{state}:", *shown[-WARNINGS_SHOWN:], sep="\n  ")


def keep_state(stack: Stack, place: Path) -> None:
    """Write down what gpuplane says of itself, and the pods that there are."""
    kept: dict[str, object] = {}
    for path in ("events", "scaling-requests", "node-claims", "pools", "reservations"):
        try:
            kept[path] = stack.gpuplane.rest.get(f"/api/v1/{path}/?page_size=500").json()
        except (httpx.HTTPError, ValueError) as error:
            kept[path] = f"not answered: {error}"
    try:
        kept["pods"] = list(stack.api.items("/api/v1/pods"))
    except (httpx.HTTPError, ApiRefused) as error:
        kept["pods"] = f"not answered: {error}"
    (place / "state.json").write_text(json.dumps(kept, indent=1))


def _schedulable(found: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", [])}
    advertised = "kubernetes.io/gpu" in found["status"].get("allocatable", {})
    return conditions.get("Ready") == "True" and advertised and not found["spec"].get("taints")
