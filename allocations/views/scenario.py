"""What-if: a scenario in, decisions and reasons out, on nothing but the text, in a process of its own (VIEW-4)."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from access.clients import client_of
from access.errors import BadInput, GpuplaneError, TooCostly, TookTooLong, TooMany, Unavailable
from access.pages import PageRequest, page
from allocations.scenario.digest import Digest
from allocations.whatif.run import what_if

LONGEST = 2_000_000
STATUSES: tuple[tuple[type[GpuplaneError], int], ...] = (
    (BadInput, 400),
    (TooCostly, 422),
    (TooMany, 429),
    (Unavailable, 503),
    (TookTooLong, 504),
)
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
        context["result"] = _run(request, _bounded(text))
    except tuple(kind for kind, _ in STATUSES) as error:
        context["problem"] = str(error)
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        response = render(request, "simulate/simulate.html", context, status=status)
        if isinstance(error, TooMany):
            response["Retry-After"] = str(error.retry_after_seconds)
        return response
    return render(request, "simulate/simulate.html", context)


def _run(request: PageRequest, text: str) -> Digest:
    """What the page shows, worked out in a process of its own."""
    told = what_if(
        text.encode("utf-8", "surrogatepass"),
        user=request.user.pk or 0,
        kind="either",
        form="digest",
        client=client_of(request),
    )
    return msgspec.json.decode(told, type=Digest)


def _bounded(text: str) -> str:
    if len(text) > LONGEST:
        raise BadInput(f"a scenario on this page has at most {LONGEST} characters", rule="size")
    return text
