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
from audit.selectors import event_list
from claims.overviews import ask_words
from claims.selectors import claim_get, claim_manifest

EVENTS_SHOWN = 20
ALLOCATIONS_SHOWN = 15
PLACED_SHOWN = 8


@require_GET
@page
def claim(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Spec, status, explanation, allocations and timeline."""
    found = claim_get(namespace=namespace, name=name, actor=request.actor)
    explanation = claim_explain(namespace, name, request.actor)
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
    """Pods that wait for the same reason, told once."""
    groups: dict[str, dict[str, Any]] = {}
    for pod in pods:
        group = groups.setdefault(pod["summary"], {"summary": pod["summary"], "reasons": pod["reasons"], "pods": []})
        group["pods"].append(pod["pod"])
    return list(groups.values())
