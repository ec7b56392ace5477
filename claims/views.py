"""The table of claims, and deleting one.

A claim's own page explains who holds what, so it is in `allocations.views`; the form that creates one
reads manifests as REST does, so it is in `gpuplane.pages`.
"""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from access.errors import Conflict, Unavailable
from access.pages import PageRequest, Slice, asked_word, may_write_anywhere, page, slice_of
from claims.choices import Phase
from claims.overviews import ask_words, claim_query
from claims.services import claim_delete


@require_GET
@page
def claim_table(request: PageRequest) -> HttpResponse:
    """Claims of the namespaces seen."""
    search, phase, namespace = (asked_word(request, name) for name in ("q", "phase", "namespace"))
    sort = asked_word(request, "sort") or "name"
    claims = claim_query(actor=request.actor, search=search, phase=phase, namespace=namespace, sort=sort)
    found = slice_of(claims, request.GET.get("page"), counted=True)
    rows = [{"claim": claim, "ask": ask_words(claim.spec)} for claim in found.rows]
    context = {
        "slice": Slice(rows, found.number, found.more, found.first, found.total),
        "search": search,
        "phase": phase,
        "namespace": namespace,
        "sort": sort,
        "phases": Phase.choices,
        "filtered": bool(search or phase or namespace),
        "may_create": may_write_anywhere(request.actor),
    }
    return render(request, "claims/list.html", context)


@require_POST
@page
def claim_remove(request: PageRequest, namespace: str, name: str) -> HttpResponse:
    """Delete a claim; allocations made through it stay."""
    try:
        claim_delete(namespace=namespace, name=name, actor=request.actor, now=timezone.now())
    except (Conflict, Unavailable) as error:
        messages.error(request, str(error))
        return redirect("claim", namespace, name)
    messages.success(request, f"Claim {namespace}/{name} is deleted.")
    return redirect("claims")
