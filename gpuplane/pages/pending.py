"""Pods that wait: the table, their number, and the explanation of one."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from allocations.explain import NodePage, pod_explain
from allocations.overviews import refusal_query
from allocations.selectors import waiting_pods
from autoscaling.selectors import growth_of_pods, pod_growth
from gpuplane.pages.page import PageRequest, page, query_word, query_words
from gpuplane.pages.slices import slice_of

COUNTED_TO = 99
SHOWN_ON_FLEET = 6


@require_safe
@page
def pending_table(request: PageRequest) -> HttpResponse:
    """Pods that wait for devices, each with its last refusal and its scheduler's message."""
    filters = query_words(request, "namespace", search="q")
    found = slice_of(refusal_query(actor=request.actor, **filters), request)
    growth = growth_of_pods(pod.pod_uid for pod in found.rows)
    shown = found.with_rows([(pod, growth.get(pod.pod_uid)) for pod in found.rows])
    context = filters | {"slice": shown, "filtered": any(filters.values())}
    return render(request, "allocations/pending.html", context)


@require_safe
@page
def pending_count(request: PageRequest) -> HttpResponse:
    """How many wait, for the menu and the fleet page: a number, or a short list with `?list=1`."""
    waiting = waiting_pods(actor=request.actor)
    if request.GET.get("list"):
        pods = list(waiting[:SHOWN_ON_FLEET])
        growth = growth_of_pods(pod.pod_uid for pod in pods)
        rows = [(pod, growth.get(pod.pod_uid)) for pod in pods]
        return render(request, "allocations/pending_short.html", {"rows": rows})
    count = len(waiting.values_list("pk")[: COUNTED_TO + 1])
    shown = str(count) if count <= COUNTED_TO else f"{COUNTED_TO}+"
    context = {"count": count, "shown": shown, "plain": bool(request.GET.get("plain"))}
    return render(request, "allocations/pending_count.html", context)


@require_safe
@page
def pending_pod(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Why one pod waits, or where it is."""
    explanation = with_lines(pod_explain(namespace, name, request.actor, nodes_shown(request)))
    growth = pod_growth(namespace=namespace, name=name)
    context = {"pod": explanation, "namespace": namespace, "name": name, "growth": growth}
    return render(request, "allocations/pod.html", context)


def nodes_shown(request: PageRequest) -> NodePage:
    """The page of nodes that the query names."""
    return NodePage(after=query_word(request, "nodes_after"))


def with_lines(explanation: dict[str, Any]) -> dict[str, Any]:
    """The explanation with each node's devices grouped by their reason (`lines`): `gpu 0, 1`, and why."""
    return explanation | {"nodes": [node | {"lines": _lines(node["devices"])} for node in explanation["nodes"]]}


def _lines(devices: list[dict[str, Any]]) -> list[dict[str, str]]:
    by_reason: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        reason = device["reason"] or "could serve"
        by_reason.setdefault(reason, {}).setdefault(device["type"], []).append(str(device["minor"]))
    return [
        {"reason": reason, "devices": "; ".join(f"{kind} {', '.join(minors)}" for kind, minors in by_type.items())}
        for reason, by_type in by_reason.items()
    ]
