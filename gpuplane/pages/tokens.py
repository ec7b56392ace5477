"""The page of tokens: the list, a form that issues one, and revoking."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict
from access.selectors import token_get, token_list, token_row
from access.token_services import token_create, token_revoke
from gpuplane.pages.form_fields import chosen, whole_number, word
from gpuplane.pages.page import PageRequest, page, query_word
from gpuplane.pages.slices import slice_of
from storage.clock import database_now

LONGEST_NAME = 150


@require_http_methods(["GET", "HEAD", "POST"])
@page
def tokens(request: PageRequest) -> HttpResponse:
    """The list and the form; a new token is shown in the response to the form alone."""
    if request.method != "POST":
        return _shown(request)
    try:
        made = token_create(
            actor=request.actor,
            now=database_now(),
            scope=chosen(TokenScope, request, "scope") if request.POST.get("scope") else TokenScope.REST,
            account=word(request, "account", longest=LONGEST_NAME),
            node=word(request, "node"),
            days=_days(word(request, "days")),
        )
    except (BadInput, Conflict) as error:
        return _shown(request, problem=str(error))
    return _shown(request, made=made)


@require_POST
@page
def token_end(request: PageRequest, uid: UUID) -> HttpResponse:
    """Revoke one."""
    token = token_get(uid=uid, actor=request.actor)
    token_revoke(token=token, actor=request.actor, now=database_now())
    messages.success(request, f"The token {token.token_key[:8]}… of {token.user.get_username()} is revoked.")
    return redirect("tokens")


def _shown(request: PageRequest, *, made: str = "", problem: str = "") -> HttpResponse:
    """The page; with a problem the form keeps what was typed."""
    account = query_word(request, "account", longest=LONGEST_NAME)
    found = slice_of(token_list(actor=request.actor, account=account), request)
    admin = request.actor.role == Role.ADMIN
    context = {
        "slice": found,
        "rows": [token_row(token) | {"user_id": token.user_id} for token in found.rows],
        "now": database_now(),
        "account": account,
        "made": made,
        "problem": problem,
        "sent": request.POST if problem else {},
        "admin": admin,
        "scopes": TokenScope.choices if admin else [],
        "days": min(settings.GPUPLANE_TOKEN_DAYS, settings.GPUPLANE_TOKEN_MOST_DAYS),
        "most_days": settings.GPUPLANE_TOKEN_MOST_DAYS,
    }
    return render(request, "access/tokens.html", context, status=400 if problem else 200)


def _days(text: str) -> int | None:
    days = whole_number(text, most_digits=6)
    if text and days is None:
        raise BadInput("days is a whole number", field="days", rule="days")
    return days
