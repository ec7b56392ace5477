"""What-if: a scenario in, decisions and reasons out, on nothing but the text (VIEW-4)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from access.errors import BadInput
from access.pages import PageRequest, page
from allocations.scenario import Limits, Result, read_scenario, run_scenario

LONGEST = 2_000_000
LIMITS = Limits(nodes=2_000, devices=16_000, pods=2_000, claims=2_000, questions=400_000, rules=4_000_000)
"""A page answers within a request; larger scenarios go through `manage.py simulate`."""
REASONS_SHOWN = 12
EXAMPLE = """\
nodes:
  - name: n1
    devices:
      - {minor: 0, type: gpu, uuid: GPU-n1-0, model: H100, memory: 80Gi, numa: 0, pcie: "0000:09"}
      - {minor: 1, type: gpu, uuid: GPU-n1-1, model: H100, memory: 80Gi, numa: 0, pcie: "0000:09"}
      - {minor: 2, type: gpu, uuid: GPU-n1-2, model: H100, memory: 80Gi, numa: 1, pcie: "0000:89"}
      - {minor: 3, type: gpu, uuid: GPU-n1-3, model: H100, memory: 80Gi, numa: 1, pcie: "0000:89"}
    links: [[0, 1, 18], [2, 3, 18]]
  - name: n2
    devices:
      - {minor: 0, type: gpu, uuid: GPU-n2-0, model: A100, memory: 40Gi}
claims:
  - apiVersion: gpu.scheduling/v1
    kind: GpuClaim
    metadata: {name: pair, namespace: research}
    spec: {devices: {count: 2, model: [H100], policy: contiguous}}
pods:
  - metadata: {name: train-0, namespace: research, annotations: {gpu.scheduling/claim: pair}}
  - metadata: {name: train-1, namespace: research, annotations: {gpu.scheduling/claim: pair}}
  - metadata: {name: train-2, namespace: research, annotations: {gpu.scheduling/claim: pair}}
"""


@require_http_methods(["GET", "POST"])
@page
def simulate(request: PageRequest) -> HttpResponse:
    """The form; after sending, the decisions beside it."""
    if request.method == "GET":
        return render(request, "simulate/simulate.html", {"text": EXAMPLE, "example": EXAMPLE})
    text = request.POST.get("scenario", "").replace("\r\n", "\n")
    context: dict[str, Any] = {"text": text[:LONGEST], "example": EXAMPLE}
    try:
        context["result"] = _told(run_scenario(read_scenario(_bounded(text), limits=LIMITS)))
    except BadInput as error:
        context |= {"problem": str(error), "field": error.field}
    return render(request, "simulate/simulate.html", context, status=400 if "problem" in context else 200)


def _bounded(text: str) -> str:
    if len(text) > LONGEST:
        raise BadInput(f"a scenario on this page has at most {LONGEST} characters", rule="size")
    return text


def _told(result: Result) -> dict[str, Any]:
    decisions = []
    for decision in result.decisions:
        counted: dict[str, int] = {}
        for reason in decision.reasons.values():
            counted[reason] = counted.get(reason, 0) + 1
        reasons = sorted(counted.items(), key=lambda item: -item[1])[:REASONS_SHOWN]
        decisions.append({"decision": decision, "reasons": reasons})
    placed = sum(decision.node is not None for decision in result.decisions)
    fleet = [
        {"name": name, "devices": devices, "used": sum(bool(one.core_used or one.memory_used) for one in devices)}
        for name, devices in result.fleet.items()
    ]
    return {
        "decisions": decisions,
        "placed": placed,
        "refused": len(result.decisions) - placed,
        "fleet": fleet,
        "problems": result.problems,
    }
