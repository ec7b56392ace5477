"""Creating a claim from its manifest, the same YAML that `kubectl` and REST take."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from rest_framework.exceptions import ParseError

from access.errors import BadInput, Conflict, NotAllowed, Unavailable
from access.pages import PageRequest, may_write_anywhere, page
from claims.services import claim_create
from gpuplane.rest.codec import read_yaml

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


@require_http_methods(["GET", "POST"])
@page
def claim_new(request: PageRequest) -> HttpResponse:
    """The form, and what it sends."""
    if not may_write_anywhere(request.actor):
        raise NotAllowed("viewers cannot create claims")
    namespaces = sorted(request.actor.namespaces or ())
    if request.method == "GET":
        text = EXAMPLE.format(namespace=namespaces[0] if namespaces else "default")
        return render(request, "claims/new.html", {"text": text, "namespaces": namespaces})
    text = request.POST.get("manifest", "").replace("\r\n", "\n")
    try:
        claim = claim_create(manifest=_manifest(text), actor=request.actor, now=timezone.now())
    except (BadInput, Conflict, Unavailable, ParseError, UnicodeEncodeError) as error:
        problem = "the manifest holds characters that are no text" if isinstance(error, UnicodeError) else str(error)
        context = {
            "text": text[:LONGEST_MANIFEST],
            "namespaces": namespaces,
            "problem": problem,
            "field": getattr(error, "field", ""),
        }
        return render(request, "claims/new.html", context, status=400)
    messages.success(request, f"Claim {claim.namespace}/{claim.name} is created.")
    return redirect("claim", claim.namespace, claim.name)


def _manifest(text: str) -> Any:
    if len(text) > LONGEST_MANIFEST:
        raise BadInput("the manifest is too long", rule="size")
    return read_yaml(text.encode())
