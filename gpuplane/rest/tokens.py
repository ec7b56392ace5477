"""REST of tokens: `tokens/`. A token is in the response that issues it and in no other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from knox.models import AuthToken
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from access.choices import TokenScope
from access.selectors import token_get, token_list, token_row
from access.token_services import token_create, token_end_set, token_revoke
from gpuplane.rest.authentication import request_actor
from gpuplane.rest.fields import body_of, filters
from storage.clock import database_now

LONGEST_DAYS = 3650


class TokenSchema(serializers.Serializer[Any]):
    """A token, without itself."""

    uid = serializers.UUIDField()
    account = serializers.CharField()
    scope = serializers.ChoiceField(choices=TokenScope.choices, help_text="what it opens")
    node = serializers.CharField(allow_blank=True, help_text="of an agent's token")
    start = serializers.CharField(help_text="its first characters")
    created_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True, help_text="null: it has no end")
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="to the minute; null: never")


class TokenMadeSchema(serializers.Serializer[Any]):
    """The only time that it is shown."""

    token = serializers.CharField()


class TokenAskedSchema(serializers.Serializer[Any]):
    """What a token is to be."""

    scope = serializers.ChoiceField(choices=TokenScope.choices, default=TokenScope.REST)
    account = serializers.CharField(
        required=False, allow_blank=True, max_length=150, default="", help_text="of a machine; empty: one's own"
    )
    node = serializers.CharField(
        required=False, allow_blank=True, max_length=253, default="", help_text="of scope agent: the node"
    )
    days = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        min_value=1,
        max_value=LONGEST_DAYS,
        help_text=(
            "until it ends; left out: GPUPLANE_TOKEN_DAYS for people, no end for machines, but not beyond the token"
            " that asks"
        ),
    )


class TokenEndSchema(serializers.Serializer[Any]):
    """Another end."""

    days = serializers.IntegerField(min_value=1, max_value=LONGEST_DAYS, help_text="from now")


class TokenFilters(serializers.Serializer[Any]):
    """Query of `tokens/`."""

    account = serializers.CharField(required=False, max_length=150)


UID = OpenApiParameter("uid", UUID, OpenApiParameter.PATH)


class TokenViewSet(GenericViewSet[AuthToken]):
    """One's own tokens; those of everybody, machines included, for admins."""

    queryset = AuthToken.objects.none()
    ordering = ("digest",)

    @extend_schema(summary="Tokens", parameters=[TokenFilters], responses=TokenSchema(many=True))
    def list(self, request: Request) -> Response:
        """Tokens that the caller may see."""
        tokens = token_list(actor=request_actor(request), **filters(TokenFilters, request))
        page = self.paginate_queryset(tokens) or []
        return self.get_paginated_response([token_row(token) for token in page])

    @extend_schema(
        summary="Issue a token",
        description=(
            "One's own, by a session; by admins one of a machine account, made where there is none, whose tokens of"
            " before are revoked. A token issues none of scope `rest`. The token is in no other answer, and is not kept"
            " for an `Idempotency-Key`: one sent along counts for nothing."
        ),
        request=TokenAskedSchema,
        responses={201: TokenMadeSchema},
    )
    def create(self, request: Request) -> Response:
        """A fresh token."""
        body = body_of(TokenAskedSchema, request)
        body["scope"] = TokenScope(body["scope"])
        token = token_create(actor=request_actor(request), now=database_now(), **body)
        return Response({"token": token}, status=201, headers={"Cache-Control": "no-store"})

    @extend_schema(summary="Set the end of a token", parameters=[UID], request=TokenEndSchema, responses=TokenSchema)
    def partial_update(self, request: Request, uid: UUID) -> Response:
        """Later by a session only; sooner by a token too."""
        days = body_of(TokenEndSchema, request)["days"]
        actor = request_actor(request)
        token = token_get(uid=uid, actor=actor)
        token_end_set(token=token, days=days, actor=actor, now=database_now())
        return Response(token_row(token))

    @extend_schema(summary="Revoke a token", parameters=[UID], responses={204: None})
    def destroy(self, request: Request, uid: UUID) -> Response:
        """It opens nothing any more."""
        actor = request_actor(request)
        token_revoke(token=token_get(uid=uid, actor=actor), actor=actor, now=database_now())
        return Response(status=204)
