"""Claims: the table, one claim's page, the form that creates one, and deleting one.

The form takes the same YAML that `kubectl` and REST take.
"""

from __future__ import annotations

from typing import Any

import yaml
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from rest_framework.exceptions import ParseError

from access.errors import BadInput, Conflict, NotAllowed, Unavailable
from allocations.explain import claim_explain
from allocations.overviews import claim_query
from allocations.selectors import allocation_list
from audit.selectors import event_list
from claims.choices import Phase
from claims.kinds import CLAIM
from claims.overviews import request_text
from claims.selectors import manifest_get, manifest_of
from claims.services import manifest_create, manifest_delete
from gpuplane.pages.page import PageRequest, may_write, may_write_anywhere, page, query_word, query_words
from gpuplane.pages.pending import nodes_shown, with_lines
from gpuplane.pages.slices import slice_of
from gpuplane.rest.codec import read_yaml
from storage.clock import database_now

EVENTS_SHOWN = 20
ALLOCATIONS_SHOWN = 15
PLACED_SHOWN = 8
MESSAGES_SHOWN = 3
LONGEST_MANIFEST = 100_000
EXAMPLE = """\
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: training
  namespace: {namespace}
spec:
  devices:
    count: 4
    type: gpu
    policy: contiguous
"""


@require_safe
@page
def claim_table(request: PageRequest) -> HttpResponse:
    """Claims of the namespaces seen."""
    filters = query_words(request, "phase", "namespace", search="q")
    sort = query_word(request, "sort") or "name"
    found = slice_of(claim_query(actor=request.actor, sort=sort, **filters), request, counted=True)
    rows = [{"claim": claim, "ask": request_text(claim.spec)} for claim in found.rows]
    context = filters | {
        "slice": found.with_rows(rows),
        "sort": sort,
        "phases": Phase.choices,
        "filtered": any(filters.values()),
        "may_create": may_write_anywhere(request.actor),
    }
    return render(request, "claims/list.html", context)


@require_safe
@page
def claim(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Spec, status, explanation, allocations and timeline."""
    found = manifest_get(CLAIM, namespace=namespace, name=name, actor=request.actor)
    explanation = claim_explain(namespace, name, request.actor, nodes_shown(request))
    manifest = manifest_of(found)
    kept = {
        key: value for key, value in manifest["metadata"].items() if value and key in {"name", "namespace", "labels"}
    }
    shown = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": kept, "spec": manifest["spec"]}
    allocations = allocation_list(actor=request.actor).filter(namespace=namespace, claim_name=name)
    waiting = [pod for pod in explanation["pods"] if pod["state"] == "pending"]
    placed = [pod for pod in explanation["pods"] if pod["state"] != "pending"]
    context = {
        "claim": found,
        "ask": request_text(found.spec),
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
    """Waiting pods grouped by their summary, with the nodes of the first and the messages of their schedulers."""
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


@require_http_methods(["GET", "HEAD", "POST"])
@page
def claim_new(request: PageRequest) -> HttpResponse:
    """The form, and what it sends."""
    if not may_write_anywhere(request.actor):
        raise NotAllowed("viewers cannot create claims")
    namespaces = sorted(request.actor.namespaces or ())
    if request.method != "POST":
        text = EXAMPLE.format(namespace=namespaces[0] if namespaces else "default")
        return render(request, "claims/new.html", {"text": text, "namespaces": namespaces})
    text = request.POST.get("manifest", "").replace("\r\n", "\n")
    try:
        claim = manifest_create(CLAIM, manifest=_manifest(text), actor=request.actor, now=database_now())
    except (BadInput, Conflict, NotAllowed, Unavailable, ParseError, UnicodeEncodeError) as error:
        problem = "the manifest holds characters that are no text" if isinstance(error, UnicodeError) else str(error)
        context = {
            "text": text[:LONGEST_MANIFEST],
            "namespaces": namespaces,
            "problem": problem,
            "field": getattr(error, "field", ""),
        }
        return render(request, "claims/new.html", context, status=403 if isinstance(error, NotAllowed) else 400)
    messages.success(request, f"Claim {claim.namespace}/{claim.name} is created.")
    return redirect("claim", claim.namespace, claim.name)


def _manifest(text: str) -> Any:
    if len(text) > LONGEST_MANIFEST:
        raise BadInput("the manifest is too long", rule="size")
    return read_yaml(text.encode())


@require_POST
@page
def claim_remove(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Delete a claim; allocations made through it stay."""
    try:
        manifest_delete(CLAIM, namespace=namespace, name=name, actor=request.actor, now=database_now())
    except (Conflict, Unavailable) as error:
        messages.error(request, str(error))
        return redirect("claim", namespace, name)
    messages.success(request, f"Claim {namespace}/{name} is deleted.")
    return redirect("claims")
