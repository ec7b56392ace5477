"""The tables of allocations and of pods that wait."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from access.pages import PageRequest, asked_word, page, slice_of
from allocations.choices import State
from allocations.explain import pod_explain
from allocations.overviews import LIVE_FILTER, allocation_query, refusal_query, waiting_pods
from allocations.views.why import nodes_shown, with_lines

COUNTED_TO = 99
SHOWN_ON_FLEET = 6


@require_GET
@page
def allocation_table(request: PageRequest) -> HttpResponse:
    """Allocations with filters; without one, those that count as used."""
    asked = {
        "state": asked_word(request, "state") or LIVE_FILTER,
        "namespace": asked_word(request, "namespace"),
        "node": asked_word(request, "node"),
        "search": asked_word(request, "q"),
    }
    found = slice_of(allocation_query(actor=request.actor, **asked), request.GET.get("page"))
    filtered = asked["state"] != LIVE_FILTER or any(asked[name] for name in ("namespace", "node", "search"))
    return render(
        request, "allocations/list.html", asked | {"slice": found, "states": State.choices, "filtered": filtered}
    )


@require_GET
@page
def pending_table(request: PageRequest) -> HttpResponse:
    """Pods that ask for devices and wait, each with the last answer it got and what its scheduler says."""
    asked = {"namespace": asked_word(request, "namespace"), "search": asked_word(request, "q")}
    found = slice_of(refusal_query(actor=request.actor, **asked), request.GET.get("page"))
    return render(request, "allocations/pending.html", asked | {"slice": found, "filtered": any(asked.values())})


@require_GET
@page
def pending_count(request: PageRequest) -> HttpResponse:
    """How many wait, for the menu and the fleet page: a number, or a short list with `?list=1`."""
    waiting = waiting_pods(actor=request.actor)
    if request.GET.get("list"):
        return render(request, "allocations/pending_short.html", {"pods": waiting[:SHOWN_ON_FLEET]})
    count = len(waiting.values_list("pk")[: COUNTED_TO + 1])
    return render(
        request,
        "allocations/pending_count.html",
        {"count": count, "most": COUNTED_TO, "plain": bool(request.GET.get("plain"))},
    )


@require_GET
@page
def pending_pod(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Why one pod waits, or where it is."""
    told = with_lines(pod_explain(namespace, name, request.actor, nodes_shown(request)))
    context = {"pod": told, "namespace": namespace, "name": name}
    return render(request, "allocations/pod.html", context)
