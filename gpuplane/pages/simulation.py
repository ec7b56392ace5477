"""What-if: runs a scenario in a process of its own and shows its decisions (VIEW-4)."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from access.clients import client_of
from access.errors import BadInput, TooCostly, TookTooLong, TooManyUnderWay, Unavailable
from allocations.scenario.digest import Digest
from allocations.whatif.run import what_if
from gpuplane.pages.page import PageRequest, page
from gpuplane.problems import FAULT, problem_of

LONGEST = 2_000_000


@require_http_methods(["GET", "POST"])
@page
def simulate(request: PageRequest) -> HttpResponse:
    """The form; after sending, the decisions beside it."""
    if request.method == "GET":
        return render(request, "simulate/simulate.html")
    text = request.POST.get("scenario", "").replace("\r\n", "\n")
    context: dict[str, Any] = {"text": text[:LONGEST]}
    try:
        context["result"] = _run(request, text)
    except (BadInput, TooCostly, TooManyUnderWay, Unavailable, TookTooLong) as error:
        problem = problem_of(error) or FAULT
        context["problem"] = str(error)
        response = render(request, "simulate/simulate.html", context, status=problem.status)
        for name, value in problem.headers.items():
            response[name] = value
        return response
    return render(request, "simulate/simulate.html", context)


def _run(request: PageRequest, text: str) -> Digest:
    """The result of the scenario. Raises what `what_if` raises, BadInput for a text that is too long."""
    if len(text) > LONGEST:
        raise BadInput(f"a scenario on this page has at most {LONGEST} characters", rule="size")
    answer = what_if(
        text.encode("utf-8", "surrogatepass"),
        user=request.user.pk or 0,
        kind="either",
        form="digest",
        client=client_of(request),
    )
    return msgspec.json.decode(answer, type=Digest)
