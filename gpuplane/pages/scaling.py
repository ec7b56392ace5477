"""Growth: what grows, for whom and how far it is, the pools, and how long nodes took."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from access.errors import Conflict
from autoscaling.overviews import pools_shown, provision_times, requests_shown
from autoscaling.selectors import request_get
from autoscaling.services import request_cancel
from gpuplane.pages.page import PageRequest, page
from storage.clock import database_now


@require_safe
@page
def scaling(request: PageRequest) -> HttpResponse:
    """The page."""
    return render(request, "scaling/list.html", _parts(request))


@require_safe
@page
def scaling_parts(request: PageRequest) -> HttpResponse:
    """What moves of it."""
    return render(request, "scaling/parts.html", _parts(request))


def _parts(request: PageRequest) -> dict[str, Any]:
    provision = provision_times()
    return {
        "requests": requests_shown(request.actor, now=database_now()),
        "pools": pools_shown(),
        "provision": provision,
        "values": json.dumps(provision),
    }


@require_POST
@page
def cancel(request: PageRequest, pk: int) -> HttpResponse:
    """Cancel a scaling request."""
    request.actor.require_operator()
    try:
        request_cancel(request=request_get(pk), actor=request.actor.name, now=database_now())
    except Conflict as error:
        messages.error(request, str(error))
    else:
        messages.success(request, "The scaling request is cancelled; its trigger pods are deleted.")
    return redirect("scaling")
