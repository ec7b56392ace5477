"""Accounts, for admins: the list, the form for a new one, one account with the forms that change it, and the first
steps of a new installation.

Invariants: only admins get these pages; a refused change shows the page again with the reason at its field, and has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from access import services
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict
from access.first_steps import first_steps
from access.models import Team
from access.selectors import ACCOUNT_KINDS, account_get, account_of, account_query, team_choices
from access.token_services import tokens_revoke
from gpuplane.pages.form_fields import FormProblem, chosen, chosen_change, form_problem, fresh_password, ids, word
from gpuplane.pages.page import PageRequest, page, query_words
from gpuplane.pages.slices import slice_of
from storage.clock import database_now

LONGEST_NAME: Final = 151
"""One more than an account's name may have: what is longer is refused, not cut."""


@require_safe
@page
def accounts(request: PageRequest) -> HttpResponse:
    """The list, with a search by name or team."""
    filters = query_words(request, "kind", search="q")
    found = slice_of(account_query(actor=request.actor, **filters), request, counted=True)
    rows = [account_of(user) for user in found.rows]
    context = filters | {"slice": found, "rows": rows, "kinds": list(ACCOUNT_KINDS), "filtered": any(filters.values())}
    return render(request, "accounts/list.html", context)


@require_safe
@page
def steps(request: PageRequest) -> HttpResponse:
    """What a new installation lacks, step by step."""
    context = {"steps": first_steps(actor=request.actor), "providers": settings.GPUPLANE_OIDC}
    return render(request, "accounts/first_steps.html", context)


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@page
def account_new(request: PageRequest) -> HttpResponse:
    """The form for an account of a person, or of a machine."""
    request.actor.require_admin()
    if request.method != "POST":
        return _form(request)
    try:
        user = _create(request)
    except (BadInput, Conflict) as error:
        return _form(request, form_problem(error, otherwise="username"))
    messages.success(request, f"The account {user.get_username()} is created.")
    return redirect("account", user.pk)


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@page
def account(request: PageRequest, user_id: int) -> HttpResponse:
    """One account, and the forms that change it: `change` says which was sent."""
    found = account_get(user_id=user_id, actor=request.actor)
    if request.method != "POST":
        return _one(request, user_id)
    change = request.POST.get("change", "")
    try:
        message = chosen_change(CHANGES, change)(request, found.user, database_now())
    except (BadInput, Conflict) as error:
        return _one(request, user_id, form_problem(error, otherwise=change), sent=change)
    messages.success(request, message)
    return redirect("accounts") if change == "delete" else redirect("account", user_id)


def _create(request: PageRequest) -> User:
    machine, scope, node = _machine_fields(request)
    role = chosen(Role, request, "role") if scope == TokenScope.REST else Role.VIEWER
    return services.user_create(
        username=word(request, "username", longest=LONGEST_NAME),
        password=None if machine else fresh_password(request),
        role=role,
        actor=request.actor,
        now=database_now(),
        service=machine,
        scope=scope,
        node=node,
        teams=_teams(request) if scope == TokenScope.REST else (),
    )


def _role(request: PageRequest, user: User, now: datetime) -> str:
    role = chosen(Role, request, "role")
    services.role_set(user=user, role=role, actor=request.actor, now=now)
    return f"{user.get_username()} is {role} now."


def _user_teams(request: PageRequest, user: User, now: datetime) -> str:
    seen = ids(request, "seen")
    services.user_teams_set(user=user, teams=_teams(request), actor=request.actor, now=now, seen=seen)
    return f"The teams of {user.get_username()} are set."


def _machine(request: PageRequest, user: User, now: datetime) -> str:
    service, scope, node = _machine_fields(request)
    services.machine_set(user=user, service=service, scope=scope, node=node, actor=request.actor, now=now)
    return f"What tokens of {user.get_username()} open is set."


def _active(request: PageRequest, user: User, now: datetime) -> str:
    opened = request.POST.get("active") == "1"
    services.user_active_set(user=user, active=opened, actor=request.actor, now=now)
    return f"The account {user.get_username()} is {'open' if opened else 'shut'}."


def _password(request: PageRequest, user: User, now: datetime) -> str:
    services.password_set(user=user, password=fresh_password(request), actor=request.actor, now=now)
    return f"The password of {user.get_username()} is set."


def _tokens(request: PageRequest, user: User, now: datetime) -> str:
    count = tokens_revoke(user=user, actor=request.actor, now=now)
    return f"{count} token{'' if count == 1 else 's'} of {user.get_username()} revoked."


def _delete(request: PageRequest, user: User, now: datetime) -> str:
    services.user_delete(user=user, actor=request.actor, now=now)
    return f"The account {user.get_username()} is deleted."


CHANGES: Final[Mapping[str, Callable[[PageRequest, User, datetime], str]]] = {
    "role": _role,
    "teams": _user_teams,
    "machine": _machine,
    "active": _active,
    "password": _password,
    "tokens": _tokens,
    "delete": _delete,
}
"""`change` of a form → the function that makes it and returns a message."""


def _machine_fields(request: PageRequest) -> tuple[bool, TokenScope, str]:
    """(whether it is a machine's account, its scope, an agent's node)."""
    machine = request.POST.get("kind") == "machine"
    scope = chosen(TokenScope, request, "scope") if machine else TokenScope.REST
    return machine, scope, word(request, "node") if scope == TokenScope.AGENT else ""


def _teams(request: PageRequest) -> list[Team]:
    return team_choices(ids(request, "teams"))


def _form(request: PageRequest, problem: FormProblem | None = None) -> HttpResponse:
    context = _choices() | {"sent": request.POST, "ticked": ids(request, "teams"), "problem": problem}
    return render(request, "accounts/new.html", context, status=200 if problem is None else 400)


def _one(request: PageRequest, user_id: int, problem: FormProblem | None = None, *, sent: str = "") -> HttpResponse:
    """The page; the form of the change `sent` keeps what was typed, the others show what is."""
    found = account_get(user_id=user_id, actor=request.actor)
    typed = request.POST
    context = _choices() | {
        "account": found,
        "role": typed.get("role", "") if sent == "role" else found.role,
        "ticked": ids(request, "teams") if sent == "teams" else [team.pk for team in found.teams],
        "machine": typed.get("kind") == "machine" if sent == "machine" else found.service,
        "scope": typed.get("scope", "") if sent == "machine" else found.scope,
        "node": typed.get("node", "") if sent == "machine" else found.node,
        "own": found.user.get_username() == request.actor.name,
        "problem": problem,
    }
    return render(request, "accounts/one.html", context, status=200 if problem is None else 400)


def _choices() -> dict[str, object]:
    return {"roles": Role.choices, "scopes": TokenScope.choices, "teams": team_choices()}
