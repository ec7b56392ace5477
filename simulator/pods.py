"""GpuClaims and pods of the simulated teams.

Called by `workload`. Invariants: every policy, every form of shares and all three dialects occur; no node can ever
serve a doomed pod, each for a reason of its own (the pending page).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kube.keys import API_VERSION, CLAIM, SCHEDULER_NAME

TEAMS: Final = ("ml-research", "inference", "vision", "recsys")
SHORTEST_SECONDS: Final = 45.0
LONGEST_SECONDS: Final = 1500.0


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of pod. `weight`: relative frequency; `devices`: number of GPUs; `minutes`: mean lifetime."""

    team: str
    name: str
    devices: int
    weight: int
    minutes: float
    claim: Mapping[str, Any] | None = None
    """Spec of its GpuClaim, which has the template's name; None: it requests resources."""
    resources: Mapping[str, str] | None = None
    beside: tuple[str, ...] = ()
    """GPU models of machines with the other devices that it requests; empty: any."""

    @property
    def models(self) -> tuple[str, ...]:
        """GPU models that it can run on; empty: any."""
        return self.beside if self.claim is None else tuple(self.claim["devices"].get("model", ()))


@dataclass(slots=True)
class SimPod:
    """One pod before it is bound."""

    template: Template
    manifest: dict[str, Any]
    seconds: float
    doomed: bool = False
    attempts: int = 0
    give_up_at: float | None = None
    """When its user deletes it, in monotonic seconds; set when it first has to wait."""

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self.manifest["metadata"]["uid"])

    @property
    def label(self) -> str:
        """namespace/name."""
        meta = self.manifest["metadata"]
        return f"{meta['namespace']}/{meta['name']}"


def _claim(count: int, *, policy: str = "none", strict: bool = False, **amounts: Any) -> dict[str, Any]:
    devices: dict[str, Any] = {"count": count, **amounts, "policy": policy}
    return {"devices": {**devices, "policyStrict": True} if strict else devices}


TEMPLATES: Final = (
    Template("ml-research", "pretrain-8", 8, 5, 9, _claim(8, policy="contiguous", strict=True, model=["H100", "A100"])),
    Template("ml-research", "finetune-4", 4, 9, 6, _claim(4, policy="contiguous")),
    Template("ml-research", "mesh-2", 2, 8, 5, _claim(2, policy="contiguous", model=["V100"])),
    Template("ml-research", "sweep", 1, 8, 3, _claim(1, policy="spread")),
    Template("ml-research", "notebook", 1, 9, 7, _claim(1, policy="binpack", core=25, memory="10Gi")),
    Template("inference", "llm-70b", 4, 7, 8, _claim(4, policy="contiguous", model=["H200-NVL", "H100"])),
    Template("inference", "llm-8b", 1, 10, 6, _claim(1, policy="binpack", model=["L40S", "A100"])),
    Template("inference", "embedder", 1, 8, 6, _claim(1, core=50, memoryRatio=50)),
    Template("inference", "reranker", 1, 7, 5, _claim(1, policy="binpack", core=20, memory="8Gi")),
    Template("inference", "canary", 1, 2, 4, {**_claim(1, core=30, memory="12Gi"), "ttlSeconds": 180}),
    Template("vision", "train-2", 2, 9, 5, _claim(2)),
    Template("vision", "detector", 1, 8, 5, _claim(1, policy="spread", core=30, memoryRatio=30)),
    Template("vision", "render", 1, 6, 4, _claim(1, model=["L40S"])),
    Template("vision", "annotate", 2, 4, 4, _claim(2, core=50, memory="12Gi")),
    Template("recsys", "ranker", 1, 6, 5, resources={"nvidia.com/gpu": "1"}),
    Template("recsys", "ranker-wide", 2, 5, 5, resources={"nvidia.com/gpu": "2"}),
    Template("recsys", "half", 1, 5, 5, resources={"koordinator.sh/gpu": "50"}),
    Template(
        "recsys",
        "pair",
        2,
        4,
        6,
        resources={"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "100"},
        beside=("H100", "A100", "V100", "H200-NVL"),
    ),
    Template(
        "recsys", "slice", 1, 5, 4, resources={"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory-ratio": "40"}
    ),
    Template("recsys", "legacy", 1, 3, 4, resources={"kubernetes.io/gpu": "50"}),
    Template(
        "recsys",
        "spread-out",
        2,
        3,
        4,
        resources={
            "koordinator.sh/gpu.shared": "2",
            "koordinator.sh/gpu-core": "60",
            "koordinator.sh/gpu-memory-ratio": "60",
        },
    ),
)
DOOMED: Final = (
    Template("ml-research", "too-large", 16, 1, 1, _claim(16)),
    Template("ml-research", "next-generation", 1, 1, 1, _claim(1, model=["B300"])),
    Template("inference", "one-island-of-8", 8, 1, 1, _claim(8, policy="contiguous", strict=True, model=["H200-NVL"])),
    Template("vision", "forgotten-claim", 1, 1, 1),
    Template("vision", "gang-of-four", 1, 1, 1, {**_claim(1), "gangRef": "four"}),
)
_IMAGES: Final = {
    "ml-research": "registry.example/research/train:2.9",
    "inference": "registry.example/serving/vllm:0.14",
    "vision": "registry.example/vision/pipeline:11",
    "recsys": "registry.example/recsys/ranker:7",
}


def claim_manifests() -> list[dict[str, Any]]:
    """Every GpuClaim of the teams."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "GpuClaim",
            "metadata": {"name": template.name, "namespace": template.team, "labels": {"team": template.team}},
            "spec": dict(template.claim),
        }
        for template in (*TEMPLATES, *DOOMED)
        if template.claim is not None
    ]


def choose(rng: random.Random, *, fits: Callable[[Template], object]) -> Template | None:
    """A random template by weight, of those that fit; None if none fits."""
    fitting = [template for template in TEMPLATES if fits(template)]
    if not fitting:
        return None
    return rng.choices(fitting, [template.weight for template in fitting])[0]


def make_pod(template: Template, rng: random.Random, *, doomed: bool = False) -> SimPod:
    """A pod of the template, as its controller would create it."""
    tail = "".join(rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
    container: dict[str, Any] = {"name": "main", "image": _IMAGES[template.team]}
    meta: dict[str, Any] = {
        "name": f"{template.name}-{tail}",
        "namespace": template.team,
        "uid": str(UUID(int=rng.getrandbits(128), version=4)),
        "labels": {"app": template.name, "team": template.team},
    }
    if template.resources is not None:
        container["resources"] = {"requests": dict(template.resources), "limits": dict(template.resources)}
    else:
        meta["annotations"] = {CLAIM: template.name}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"schedulerName": SCHEDULER_NAME, "restartPolicy": "Never", "containers": [container]},
        "status": {"phase": "Pending"},
    }
    seconds = min(LONGEST_SECONDS, max(SHORTEST_SECONDS, rng.lognormvariate(0, 0.5) * template.minutes * 60))
    return SimPod(template, manifest, seconds, doomed)


def bare(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The pod without UID, as a mutating webhook sees it."""
    meta = {key: value for key, value in manifest["metadata"].items() if key != "uid"}
    return {**manifest, "metadata": meta}


def is_of_template(pod_name: str, template: Template) -> bool:
    """Whether the pod was made from the template."""
    stem, dash, tail = pod_name.rpartition("-")
    return bool(dash) and stem == template.name and len(tail) == 5
