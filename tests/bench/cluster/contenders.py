"""gpuplane among the contenders, and the list of all. They run on the same nodes of the same cluster.

Used by `tests.bench.cluster`. gpuplane and its webhooks run for its own contenders only, so that nothing of it weighs
on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.bench.cluster.contender import CLEAN_SECONDS, NATIVE, Contender, Json, Size
from tests.bench.cluster.ground import NAMESPACE, Ground
from tests.bench.cluster.rivals import ConstantExtender, WithDra
from tests.bench.cluster.timing import BEGIN, TIMES
from tests.cluster import truth
from tests.cluster.controlplane.gpuplane import Gpuplane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.program import Program
from tests.cluster.controlplane.stack import eventually
from tests.cluster.invariants import settled
from tests.servers import session

GPUCLAIMS = f"/apis/gpu.scheduling/v1/namespaces/{NAMESPACE}/gpuclaims"
QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
GANGS = f"/apis/gpu.scheduling/v1/namespaces/{NAMESPACE}/gpugangs"
VENDORS = ("sqlite", "postgresql")
WAYS = ("native", "claim", "queue", "gang")
"""`queue`: native pods behind a queue that opens with the scheduler; `gang`: all in one, and the last comes then."""
NAMES = ("stock", "dra", "floor", *(f"{vendor}-{way}" for vendor in VENDORS for way in WAYS))


class WithGpuplane(Contender):
    """gpuplane on one database, asked in one way. One installation a database serves all ways, stopped in between."""

    scheduler = "gpu-scheduler"

    def __init__(self, ground: Ground, gpuplane: Gpuplane, *, way: str) -> None:
        super().__init__(ground)
        self._gpuplane = gpuplane
        self._way = way
        self._last: list[Json] = []
        """Pods that come once the scheduler runs."""
        self.name = f"{gpuplane.vendor}-{way}"
        self.title = f"gpuplane on {gpuplane.vendor}, {_TITLES.get(way, NATIVE)}"

    def open(self) -> None:
        """Its processes, then its webhooks."""
        self.ground.stack._gpuplane = self._gpuplane
        self._gpuplane.start()
        self.ground.webhooks(on=True)

    def prepare(self, size: Size) -> None:
        """The claim that all pods name."""
        settled(self.ground.stack, seconds=300)
        if self._way == "queue":
            self.ground.api.create(QUEUES, _manifest("GpuQueue", "bench", quotas=[{"limit": 0}]))
            eventually(self._knows_the_queue, seconds=30, what="admission knows the queue")
        if self._way == "gang":
            self.ground.api.create(GANGS, _manifest("GpuGang", "bench", minMember=size.pods))
        if self._way == "claim":
            devices = {"count": size.count, "policy": size.policy}
            self.ground.api.create(GPUCLAIMS, claim("gpus", NAMESPACE, devices=devices))

    def asking(self, size: Size) -> Json:
        """By claim or by resource."""
        return {"claimed": "gpus"} if self._way == "claim" else super().asking(size)

    def bodies(self, size: Size) -> list[Json]:
        """Labelled for their queue or gang; of a gang all but the last."""
        made = super().bodies(size)
        if self._way in ("queue", "gang"):
            for one in made:
                one["metadata"]["labels"][f"gpu.scheduling/{self._way}"] = "bench"
        self._last = made[-1:] if self._way == "gang" else []
        return made[: len(made) - len(self._last)]

    def start_scheduler(self) -> Program:
        """As the chart has it; then the queue opens, or the gang's last pod comes."""
        started = self.ground.start_extended_scheduler()
        if self._way == "queue":
            self.ground.api.patch(f"{QUEUES}/bench", {"spec": {"quotas": []}})
        self.ground.add_pods(self._last)
        return started

    def pids(self) -> dict[str, int]:
        """Every process of the installation, PostgreSQL too."""
        found = {one.name: one.pid for one in self._gpuplane.programs}
        guard = session.enter() / "postgres.guard"
        if self._gpuplane.database_url and guard.exists():
            found["postgres"] = int(guard.read_text())
        return found

    def begin(self) -> None:
        """Forget times of requests."""
        self._gpuplane.rest.post(BEGIN).raise_for_status()

    def times(self) -> Json:
        """Of the web process."""
        found: Json = self._gpuplane.rest.get(TIMES).json()
        return found

    def check(self, size: Size) -> None:
        """Ledger = Leases = annotations = devices, by the tests' own comparison."""
        super().check(size)
        seen = settled(self.ground.stack, seconds=300)
        given = sum(len(row.grants) for row in seen.allocations)
        assert given == size.pods * size.count, f"{given} devices are held"

    def clean(self, size: Size) -> None:
        """Pods and claim; returns when the ledger holds nothing and no Lease is left."""
        super().clean(size)
        if self._way == "claim":
            self.ground.api.delete(GPUCLAIMS)
        if self._way == "queue":
            self.ground.api.delete(f"{QUEUES}/bench")
        if self._way == "gang":
            self.ground.api.delete(f"{GANGS}/bench")
        eventually(self._nothing_held, seconds=CLEAN_SECONDS, what="the ledger empty and every Lease gone")

    def close(self) -> None:
        """Its webhooks, then its processes."""
        self.ground.webhooks(on=False)
        self._gpuplane.stop()
        self.ground.stack._gpuplane = None

    def _knows_the_queue(self) -> bool:
        probe = pod("probe", NAMESPACE, resources={NATIVE: 1})
        probe["metadata"]["labels"]["gpu.scheduling/queue"] = "bench"
        made = self.ground.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", probe)
        return bool(made["spec"].get("schedulingGates"))

    def _nothing_held(self) -> bool:
        return not truth.rows(self._gpuplane)[1] and not self.ground.stack.leases()


_TITLES = {"claim": "GpuClaim", "queue": f"{NATIVE} through a queue", "gang": f"a gang by {NATIVE}"}


def _manifest(kind: str, name: str, **spec: Any) -> Json:
    place = {} if kind == "GpuQueue" else {"namespace": NAMESPACE}
    return {"apiVersion": "gpu.scheduling/v1", "kind": kind, "metadata": {"name": name, **place}, "spec": spec}


def installation(ground: Ground, vendor: str) -> Gpuplane:
    """A gpuplane that knows the nodes, stopped. Its web process is timed from within."""
    made = Gpuplane(
        ground.folder / vendor, kubeconfigs=ground.stack.kubeconfigs, doors=ground.stack.doors, vendor=vendor
    )
    made.web.command[:] = ["python", "-m", "tests.bench.cluster.web"]
    ground.stack._gpuplane = made
    made.start()
    ground.register(made)
    settled(ground.stack, seconds=300)
    made.stop()
    ground.stack._gpuplane = None
    return made


def contenders(ground: Ground, names: Sequence[str]) -> list[Contender]:
    """Those named, in the order of the names."""
    made: dict[str, Contender] = {
        one.name: one for one in (Contender(ground), WithDra(ground), ConstantExtender(ground))
    }
    for vendor in VENDORS:
        if any(name.startswith(vendor) for name in names):
            gpuplane = installation(ground, vendor)
            for way in WAYS:
                one = WithGpuplane(ground, gpuplane, way=way)
                made[one.name] = one
    return [made[name] for name in names]


def close_all(made: Sequence[Contender]) -> None:
    """Stop what is left of every installation and drop its database."""
    for one in made:
        if isinstance(one, WithGpuplane):
            one._gpuplane.close()
