"""REST of accounts and teams, for admins: `accounts/`, `teams/`.

Invariants: a request changes all that it names or nothing; a token makes no admin and sets no password
(`access.services`).
"""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import User
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access import services, team_services
from access.choices import Role, TokenScope
from access.models import Team
from access.selectors import (
    ACCOUNT_KINDS,
    Account,
    account_by_name,
    account_of,
    account_query,
    accounts_named,
    team_by_name,
    team_query,
    teams_named,
)
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import body_of, filters
from storage.clock import database_now
from storage.transactions import atomic_retry

NAME_LONGEST: Final = 150
LIST_MOST: Final = 10_000
USERNAME: Final = OpenApiParameter("username", str, OpenApiParameter.PATH, description="name of the account")
TEAM: Final = OpenApiParameter("name", str, OpenApiParameter.PATH, description="name of the team")


def _names(longest: int, **more: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.CharField(max_length=longest), max_length=LIST_MOST, **more)


class AccountSchema(serializers.Serializer[Any]):
    """An account."""

    username = serializers.CharField()
    role = serializers.ChoiceField(choices=Role.choices)
    kind = serializers.ChoiceField(choices=["person", "machine"])
    scope = serializers.ChoiceField(choices=TokenScope.choices, help_text="what its tokens open")
    node = serializers.CharField(allow_blank=True, help_text="of an agent's account")
    teams = serializers.ListField(child=serializers.CharField())
    active = serializers.BooleanField(help_text="false: shut")
    tokens = serializers.IntegerField(help_text="their number, ended ones included")
    last_sign_in_at = serializers.DateTimeField(allow_null=True)


class AccountAskedSchema(serializers.Serializer[Any]):
    """What an account is to be."""

    username = serializers.CharField(max_length=NAME_LONGEST)
    role = serializers.ChoiceField(choices=Role.choices, default=Role.VIEWER, help_text="admin: by a session only")
    kind = serializers.ChoiceField(choices=["person", "machine"], default="person")
    scope = serializers.ChoiceField(choices=TokenScope.choices, default=TokenScope.REST, help_text="of a machine")
    node = serializers.CharField(required=False, allow_blank=True, max_length=253, default="", help_text="of an agent")
    password = serializers.CharField(
        required=False,
        allow_null=True,
        default=None,
        max_length=1024,
        trim_whitespace=False,
        write_only=True,
        help_text="of a person, by a session only; without one the account has tokens only",
    )
    teams = _names(63, required=False, default=list)


class AccountChangeSchema(serializers.Serializer[Any]):
    """What is to change; what is left out stays."""

    role = serializers.ChoiceField(choices=Role.choices, required=False, help_text="admin: by a session only")
    active = serializers.BooleanField(required=False, help_text="false shuts the account and revokes its tokens")
    password = serializers.CharField(
        required=False,
        max_length=1024,
        trim_whitespace=False,
        write_only=True,
        help_text="of another person, by a session only; one's own is set on its page, which asks for the old one",
    )
    teams = _names(63, required=False, help_text="these and no others")


class AccountFilters(serializers.Serializer[Any]):
    """Query of `accounts/`."""

    search = serializers.CharField(required=False, max_length=NAME_LONGEST, help_text="in the name, or a team")
    kind = serializers.ChoiceField(choices=sorted(ACCOUNT_KINDS), required=False)


class TeamSchema(serializers.Serializer[Any]):
    """A team."""

    name = serializers.CharField(max_length=63)
    namespaces = _names(63, required=False, default=list, help_text="what its members see, and operators write in")
    members = _names(NAME_LONGEST, required=False, default=list, help_text="names of accounts")


class TeamChangeSchema(serializers.Serializer[Any]):
    """What is to change; what is left out stays."""

    namespaces = _names(63, required=False, help_text="these and no others")
    members = _names(NAME_LONGEST, required=False, help_text="these and no others")


class TeamFilters(serializers.Serializer[Any]):
    """Query of `teams/`."""

    search = serializers.CharField(required=False, max_length=63, help_text="in the name, or a namespace")


def _account_row(account: Account) -> dict[str, Any]:
    return {
        "username": account.user.get_username(),
        "role": account.role,
        "kind": "machine" if account.service else "person",
        "scope": account.scope,
        "node": account.node,
        "teams": sorted(team.name for team in account.teams),
        "active": account.user.is_active,
        "tokens": account.tokens,
        "last_sign_in_at": account.user.last_login,
    }


def _team_row(team: Team) -> dict[str, Any]:
    return {
        "name": team.name,
        "namespaces": [one.namespace for one in team.namespaces.all()],
        "members": [user.get_username() for user in team.members.all()],
    }


class AccountViewSet(GenericViewSet[User]):
    """Accounts of people and machines."""

    queryset = User.objects.none()
    ordering = ("username",)

    @extend_schema(summary="Accounts", parameters=[AccountFilters], responses=AccountSchema(many=True))
    def list(self, request: Request) -> Response:
        """By name."""
        rows = account_query(actor=request_actor(request), **filters(AccountFilters, request))
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response([_account_row(account_of(user)) for user in page])

    @extend_schema(summary="Create an account", request=AccountAskedSchema, responses={201: AccountSchema})
    def create(self, request: Request) -> Response:
        """Of a person or a machine."""
        actor, body = request_actor(request), body_of(AccountAskedSchema, request)
        actor.require_admin()
        user = services.user_create(
            username=body["username"],
            password=body["password"],
            role=Role(body["role"]),
            actor=actor,
            now=database_now(),
            service=body["kind"] == "machine",
            scope=TokenScope(body["scope"]),
            node=body["node"],
            teams=teams_named(body["teams"]),
        )
        return Response(_account_row(account_by_name(name=user.get_username(), actor=actor)), status=201)

    @extend_schema(summary="One account", parameters=[USERNAME], responses=AccountSchema)
    def retrieve(self, request: Request, username: str) -> Response:
        """By name."""
        return Response(_account_row(account_by_name(name=username, actor=request_actor(request))))

    @extend_schema(
        summary="Change an account", parameters=[USERNAME], request=AccountChangeSchema, responses=AccountSchema
    )
    def partial_update(self, request: Request, username: str) -> Response:
        """Role, teams, password, and whether it is open."""
        body = body_of(AccountChangeSchema, request)
        self._change(request, username, body)
        return Response(_account_row(account_by_name(name=username, actor=request_actor(request))))

    @extend_schema(summary="Delete an account", parameters=[USERNAME], responses={204: None})
    def destroy(self, request: Request, username: str) -> Response:
        """With its tokens."""
        actor = request_actor(request)
        user = account_by_name(name=username, actor=actor).user
        services.user_delete(user=user, actor=actor, now=database_now())
        return Response(status=204)

    @staticmethod
    @atomic_retry
    def _change(request: Request, username: str, body: dict[str, Any]) -> None:
        actor, now = request_actor(request), database_now()
        user = account_by_name(name=username, actor=actor).user
        if "role" in body:
            services.role_set(user=user, role=Role(body["role"]), actor=actor, now=now)
        if "teams" in body:
            services.user_teams_set(user=user, teams=teams_named(body["teams"]), actor=actor, now=now)
        if "password" in body:
            services.password_set(user=user, password=body["password"], actor=actor, now=now)
        if "active" in body:
            services.user_active_set(user=user, active=body["active"], actor=actor, now=now)


class TeamViewSet(GenericViewSet[Team]):
    """Teams: who shares which namespaces."""

    queryset = Team.objects.none()
    ordering = ("name",)

    @extend_schema(summary="Teams", parameters=[TeamFilters], responses=TeamSchema(many=True))
    def list(self, request: Request) -> Response:
        """By name."""
        rows = team_query(actor=request_actor(request), **filters(TeamFilters, request))
        return self.get_paginated_response([_team_row(team) for team in self.paginate_queryset(rows) or []])

    @extend_schema(summary="Create a team", request=TeamSchema, responses={201: TeamSchema})
    def create(self, request: Request) -> Response:
        """With its namespaces and members."""
        actor, body = request_actor(request), body_of(TeamSchema, request)
        self._create(request, body)
        return Response(_team_row(team_by_name(name=body["name"], actor=actor)), status=201)

    @extend_schema(summary="One team", parameters=[TEAM], responses=TeamSchema)
    def retrieve(self, request: Request, name: str) -> Response:
        """By name."""
        return Response(_team_row(team_by_name(name=name, actor=request_actor(request))))

    @extend_schema(summary="Change a team", parameters=[TEAM], request=TeamChangeSchema, responses=TeamSchema)
    def partial_update(self, request: Request, name: str) -> Response:
        """Its namespaces, its members."""
        actor, body = request_actor(request), body_of(TeamChangeSchema, request)
        members = accounts_named(body["members"]) if "members" in body else None
        team_services.team_set(
            team=team_by_name(name=name, actor=actor),
            namespaces=body.get("namespaces"),
            members=members,
            actor=actor,
            now=database_now(),
        )
        return Response(_team_row(team_by_name(name=name, actor=actor)))

    @extend_schema(summary="Delete a team", parameters=[TEAM], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Its members lose its namespaces."""
        actor = request_actor(request)
        team_services.team_delete(team=team_by_name(name=name, actor=actor), actor=actor, now=database_now())
        return Response(status=204)

    @staticmethod
    @atomic_retry
    def _create(request: Request, body: dict[str, Any]) -> None:
        actor, now = request_actor(request), database_now()
        actor.require_admin()
        members = accounts_named(body["members"])
        team = team_services.team_create(name=body["name"], namespaces=body["namespaces"], actor=actor, now=now)
        team_services.team_set(team=team, namespaces=None, members=members, actor=actor, now=now)
