"""The page of tokens: what there is, what each opens, until when, when it was last used; a fresh one; and revoking."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from access.api import token_row
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict
from access.pages import PageRequest, asked_word, page, slice_of
from access.selectors import token_get, token_list
from access.token_services import token_create, token_revoke

LONGEST_NAME = 150


@require_http_methods(["GET", "POST"])
@page
def tokens(request: PageRequest) -> HttpResponse:
    """The list, and the form for a fresh one, which is shown on the answer to the form and never again."""
    if request.method == "GET":
        return _shown(request)
    try:
        made = token_create(
            actor=request.actor,
            now=timezone.now(),
            scope=_scope(request.POST.get("scope", "")),
            account=request.POST.get("account", "").strip()[:LONGEST_NAME],
            node=request.POST.get("node", "").strip()[:LONGEST_NAME],
            days=_days(request.POST.get("days", "")),
        )
    except (BadInput, Conflict) as error:
        return _shown(request, problem=str(error), status=400)
    return _shown(request, made=made)


@require_POST
@page
def token_end(request: PageRequest, uid: UUID) -> HttpResponse:
    """Revoke one."""
    token = token_get(uid=uid, actor=request.actor)
    token_revoke(token=token, actor=request.actor, now=timezone.now())
    messages.success(request, f"The token {token.token_key[:8]}… of {token.user.get_username()} is revoked.")
    return redirect("tokens")


def _shown(request: PageRequest, *, made: str = "", problem: str = "", status: int = 200) -> HttpResponse:
    account = asked_word(request, "account", longest=LONGEST_NAME)
    found = slice_of(token_list(actor=request.actor, account=account), request.GET.get("page"))
    admin = request.actor.role == Role.ADMIN
    context = {
        "slice": found,
        "rows": [token_row(token) for token in found.rows],
        "now": timezone.now(),
        "account": account,
        "made": made,
        "problem": problem,
        "admin": admin,
        "scopes": TokenScope.choices if admin else [],
        "days": min(settings.GPUPLANE_TOKEN_DAYS, settings.GPUPLANE_TOKEN_MOST_DAYS),
        "most_days": settings.GPUPLANE_TOKEN_MOST_DAYS,
    }
    return render(request, "access/tokens.html", context, status=status)


def _scope(given: str) -> TokenScope:
    try:
        return TokenScope(given or TokenScope.REST)
    except ValueError as error:
        raise BadInput("there is no such scope", field="scope", rule="scope") from error


def _days(given: str) -> int | None:
    text = given.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise BadInput("days is a whole number", field="days", rule="days")
    return int(text)
