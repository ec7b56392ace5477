"""What-if: runs a scenario in a process of its own and shows its decisions (VIEW-4)."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from access.clients import client_of
from access.errors import BadInput, TooCostly, TookTooLong, TooLarge, TooManyUnderWay, Unavailable
from allocations.live_scenario import live_scenario, scenario_text
from allocations.scenario.comparison import beside
from allocations.scenario.digest import Digest
from allocations.scenario.parse import PAGE_LIMITS
from allocations.whatif.run import what_if
from autoscaling.selectors import scenario_pools
from gpuplane.pages.page import PageRequest, page, query_word
from gpuplane.problems import FAULT, problem_of

LONGEST = 2_000_000
HEADING = """# The fleet as it is. Add the pods that you want to try below `pods`, for example:
#   - metadata: {name: try-me, namespace: default, labels: {}}
#     spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


@require_http_methods(["GET", "HEAD", "POST"])
@page
def simulate(request: PageRequest) -> HttpResponse:
    """The form, with an example or the fleet as it is; after sending, the decisions, and beside them those of the fleet
    as it was loaded (as it is now, where it was not), if that is asked for.
    """
    if request.method != "POST":
        return _form(request)
    text = request.POST.get("scenario", "").replace("\r\n", "\n")
    compared = request.POST.get("beside") == "fleet"
    today = request.POST.get("today", "").replace("\r\n", "\n")
    context: dict[str, Any] = {"text": text[:LONGEST], "compared": compared, "today": today[:LONGEST]}
    try:
        context["result"] = result = _run(request, text)
        if compared:
            context["beside"] = beside(_run(request, today or _fleet(request)), result)
    except (BadInput, TooCostly, TooManyUnderWay, Unavailable, TookTooLong) as error:
        problem = problem_of(error) or FAULT
        context["problem"] = str(error)
        response = render(request, "simulate/simulate.html", context, status=problem.status)
        for name, value in problem.headers.items():
            response[name] = value
        return response
    return render(request, "simulate/simulate.html", context)


def _form(request: PageRequest) -> HttpResponse:
    """The form with the example, or with the fleet as it is (`?from=fleet`)."""
    if query_word(request, "from") != "fleet":
        return render(request, "simulate/simulate.html")
    try:
        text = _fleet(request)
    except TooLarge as error:
        words = f"{error}; GET /api/v1/simulations/ answers it for REST and manage.py simulate"
        return render(request, "simulate/simulate.html", {"problem": words}, status=413)
    return render(request, "simulate/simulate.html", {"text": text, "today": text, "compared": True})


def _fleet(request: PageRequest) -> str:
    scenario = live_scenario(actor=request.actor, limits=PAGE_LIMITS)
    pools = scenario_pools()
    text = HEADING + scenario_text({**scenario, "pools": pools} if pools else scenario)
    if len(text) > LONGEST:
        raise TooLarge(f"the fleet takes {len(text)} characters, and this page takes {LONGEST}")
    return text


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
