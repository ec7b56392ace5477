"""A claim's page: what it asks, who holds devices through it, and why the others wait."""

from __future__ import annotations

from typing import Any

import yaml
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from access.pages import PageRequest, may_write, page
from allocations.explain import claim_explain
from allocations.selectors import allocation_list
from allocations.views.why import nodes_shown, with_lines
from audit.selectors import event_list
from claims.overviews import ask_words
from claims.selectors import claim_get, claim_manifest

EVENTS_SHOWN = 20
ALLOCATIONS_SHOWN = 15
PLACED_SHOWN = 8
MESSAGES_SHOWN = 3


@require_GET
@page
def claim(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Spec, status, explanation, allocations and timeline."""
    found = claim_get(namespace=namespace, name=name, actor=request.actor)
    explanation = claim_explain(namespace, name, request.actor, nodes_shown(request))
    manifest = claim_manifest(found)
    kept = {
        key: value for key, value in manifest["metadata"].items() if value and key in {"name", "namespace", "labels"}
    }
    shown = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": kept, "spec": manifest["spec"]}
    allocations = allocation_list(actor=request.actor).filter(namespace=namespace, claim_name=name)
    waiting = [pod for pod in explanation["pods"] if pod["state"] == "pending"]
    placed = [pod for pod in explanation["pods"] if pod["state"] != "pending"]
    context = {
        "claim": found,
        "ask": ask_words(found.spec),
        "devices_spec": found.spec.get("devices") if isinstance(found.spec.get("devices"), dict) else {},
        "manifest": yaml.safe_dump(shown, sort_keys=False, allow_unicode=True),
        "summary": explanation["summary"],
        "waiting": _by_answer(waiting),
        "placed": placed[:PLACED_SHOWN],
        "more_placed": max(0, len(placed) - PLACED_SHOWN),
        "allocations": allocations[:ALLOCATIONS_SHOWN],
        "events": event_list(actor=request.actor, namespace=namespace, claim=name)[:EVENTS_SHOWN],
        "may_write": may_write(request.actor, namespace),
    }
    return render(request, "claims/one.html", context)


def _by_answer(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pods that wait for the same reason, told once, with the nodes of the first and every word of their schedulers."""
    groups: dict[str, dict[str, Any]] = {}
    for pod in pods:
        group = groups.get(pod["summary"])
        if group is None:
            group = groups[pod["summary"]] = with_lines(pod) | {"pods": [], "messages": []}
        group["pods"].append(pod["pod"])
        said = {key: pod["scheduler"][key] for key in ("name", "message")}
        if said["message"] and said not in group["messages"] and len(group["messages"]) < MESSAGES_SHOWN:
            group["messages"].append(said)
    return list(groups.values())
