"""Teams, for admins: the list, the form for a new one, and one team with its namespaces and members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from access import team_services
from access.errors import BadInput, Conflict, NotFound
from access.models import Team
from access.selectors import account_named, team_get, team_query
from gpuplane.pages.form_fields import FormProblem, chosen_change, form_problem, word, words
from gpuplane.pages.page import PageRequest, page, query_word
from gpuplane.pages.slices import slice_of
from storage.clock import database_now


@require_safe
@page
def teams(request: PageRequest) -> HttpResponse:
    """The list, with a search by name or namespace."""
    search = query_word(request, "q")
    found = slice_of(team_query(actor=request.actor, search=search), request, counted=True)
    return render(request, "accounts/teams.html", {"slice": found, "search": search})


@require_http_methods(["GET", "HEAD", "POST"])
@page
def team_new(request: PageRequest) -> HttpResponse:
    """The form for a new one."""
    request.actor.require_admin()
    problem = None
    if request.method == "POST":
        try:
            team = team_services.team_create(
                name=word(request, "name"),
                namespaces=words(request, "namespaces"),
                actor=request.actor,
                now=database_now(),
            )
        except (BadInput, Conflict) as error:
            problem = form_problem(error, otherwise="name")
        else:
            messages.success(request, f"The team {team.name} is created.")
            return redirect("team", team.pk)
    context = {"sent": request.POST, "problem": problem}
    return render(request, "accounts/team_new.html", context, status=200 if problem is None else 400)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def team(request: PageRequest, team_id: int) -> HttpResponse:
    """One team, and the forms that change it: `change` says which was sent."""
    found = team_get(team_id=team_id, actor=request.actor)
    if request.method != "POST":
        return _one(request, found)
    change = request.POST.get("change", "")
    try:
        message = chosen_change(CHANGES, change)(request, found, database_now())
    except (BadInput, Conflict) as error:
        return _one(request, found, form_problem(error, otherwise=change))
    messages.success(request, message)
    return redirect("teams") if change == "delete" else redirect("team", team_id)


def _namespace_add(request: PageRequest, team: Team, now: datetime) -> str:
    namespace = word(request, "namespace")
    team_services.team_namespace_add(team=team, namespace=namespace, actor=request.actor, now=now)
    return f"The namespace {namespace} belongs to {team.name}."


def _namespace_remove(request: PageRequest, team: Team, now: datetime) -> str:
    namespace = word(request, "namespace")
    team_services.team_namespace_remove(team=team, namespace=namespace, actor=request.actor, now=now)
    return f"The namespace {namespace} is taken from {team.name}."


def _member_add(request: PageRequest, team: Team, now: datetime) -> str:
    user = _member(request)
    team_services.team_member_add(team=team, user=user, actor=request.actor, now=now)
    return f"{user.get_username()} is in {team.name}."


def _member_remove(request: PageRequest, team: Team, now: datetime) -> str:
    user = _member(request)
    team_services.team_member_remove(team=team, user=user, actor=request.actor, now=now)
    return f"{user.get_username()} has left {team.name}."


def _delete(request: PageRequest, team: Team, now: datetime) -> str:
    team_services.team_delete(team=team, actor=request.actor, now=now)
    return f"The team {team.name} is deleted."


CHANGES: Final[Mapping[str, Callable[[PageRequest, Team, datetime], str]]] = {
    "namespace-add": _namespace_add,
    "namespace-remove": _namespace_remove,
    "member-add": _member_add,
    "member-remove": _member_remove,
    "delete": _delete,
}
"""`change` of a form → the function that makes it and returns a message."""


def _member(request: PageRequest) -> User:
    name = word(request, "member")
    try:
        return account_named(name)
    except NotFound as error:
        raise BadInput(str(error), field="member", rule="member") from error


def _one(request: PageRequest, found: Team, problem: FormProblem | None = None) -> HttpResponse:
    context = {"team": found, "sent": request.POST, "problem": problem}
    return render(request, "accounts/team.html", context, status=200 if problem is None else 400)
