"""Models with their memory, slots and queue; runners with their GPUs; one model, one slot with what it wrote."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from access.choices import Role
from access.errors import Conflict
from gpuplane.fresh_samples import fresh_samples
from gpuplane.pages.page import PageRequest, page
from inference.choices import WANTED
from inference.model_fields import shown_fields
from inference.overviews import model_shown, models_shown, queue_shown, runners_shown, served_shown, slots_shown
from inference.runner_logs import shown_log
from inference.selectors import model_get, slot_get, slot_list
from inference.services import slot_stop
from storage.clock import database_now

SLOTS_OF_A_MODEL = 50


@require_safe
@page
def models(request: PageRequest) -> HttpResponse:
    """Models, who waits and why, slots, and what was served."""
    return render(request, "inference/models.html", _parts() | {"served": json.dumps(served_shown(database_now()))})


@require_safe
@page
def models_parts(request: PageRequest) -> HttpResponse:
    """Its tables, which move."""
    return render(request, "inference/parts.html", _parts())


def _parts() -> dict[str, Any]:
    return {"models": models_shown(), "queue": queue_shown(), "slots": slots_shown()}


@require_safe
@page
def runners(request: PageRequest) -> HttpResponse:
    """Runners with their GPUs: what slots and others claim, and what is measured."""
    return render(request, "inference/runners.html", {"runners": runners_shown(fresh_samples())})


@require_safe
@page
def model(request: PageRequest, name: str) -> HttpResponse:
    """One model: its fields, its memory with the parts, its slots."""
    found = model_get(name)
    context = {
        "row": model_shown(found),
        "fields": shown_fields(found),
        "slots": slot_list().filter(model_name=name)[:SLOTS_OF_A_MODEL],
    }
    return render(request, "inference/model.html", context)


@require_safe
@page
def slot(request: PageRequest, slot_id: str) -> HttpResponse:
    """One slot: what it is, its times, its log."""
    found = slot_get(slot_id)
    context = {
        "slot": found,
        "written": shown_log(found),
        "gpus": list(zip(found.gpus, found.memory, strict=True)),
        "may_stop": found.state in WANTED and request.actor.role != Role.VIEWER,
    }
    return render(request, "inference/slot.html", context)


@require_POST
@page
def stop(request: PageRequest, slot_id: str) -> HttpResponse:
    """Stop a slot."""
    found = slot_get(slot_id)
    try:
        slot_stop(slot=found, actor=request.actor, now=database_now())
    except Conflict as error:
        messages.error(request, str(error))
    else:
        messages.success(request, "The slot takes no new request, and goes once it has none.")
    return redirect("inference-slot", slot_id)
