"""Accounts, teams, tokens and idempotency records in Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from knox import admin as knox_admin
from knox.models import AuthToken
from typing_extensions import override

from access.models import IdempotencyRecord, Profile, Team, TeamNamespace
from access.selectors import SHOWN, profile_of, scope_of
from audit.admin import NoWrites, ReadOnly

if TYPE_CHECKING:
    # Django's admin classes are generic for the type checker only
    TabularInline = admin.TabularInline[Any, Any]
    StackedInline = admin.StackedInline[Any, Any]
else:
    TabularInline, StackedInline = admin.TabularInline, admin.StackedInline


class ProfileInline(NoWrites, StackedInline):
    """Role of an account."""

    model = Profile
    fields = ("role", "service", "scope", "node")


class NamespaceInline(NoWrites, TabularInline):
    """Namespaces of a team."""

    model = TeamNamespace


admin.site.unregister(User)  # these modules register them for writing when they are imported
admin.site.unregister(Group)
admin.site.unregister(knox_admin.models.AuthToken)


@admin.register(User)
class AccountAdmin(ReadOnly):
    """Accounts with their roles, without the hashes of passwords."""

    inlines = (ProfileInline,)
    fields = list_display = ("username", "is_active", "is_staff", "is_superuser", "last_login", "date_joined")
    search_fields = UserAdmin.search_fields


@admin.register(AuthToken)
class TokenAdmin(ReadOnly):
    """Tokens, of which only the digest is kept."""

    list_display = ("shown", "user", "scope", "created", "expiry", "last_used_at")
    search_fields = ("user__username",)
    fields = list_display
    show_full_result_count = False
    ordering = ("-created", "pk")

    @admin.display(description="token")
    def shown(self, token: AuthToken) -> str:
        """Its beginning."""
        return f"{token.token_key[:SHOWN]}…"

    @admin.display(description="scope")
    def scope(self, token: AuthToken) -> str:
        """Of its account."""
        return scope_of(profile_of(token.user)).value

    @admin.display(description="last used")
    def last_used_at(self, token: AuthToken) -> Any:
        """To the minute."""
        use = getattr(token, "use", None)
        return None if use is None else use.last_used_at

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[AuthToken]:
        rows: QuerySet[AuthToken] = super().get_queryset(request).select_related("user__profile", "use")
        return rows


@admin.register(Team)
class TeamAdmin(ReadOnly):
    """Teams with their namespaces and members."""

    inlines = (NamespaceInline,)
    search_fields = ("name",)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnly):
    """Idempotency records."""

    list_display = ("key", "user", "method", "path", "status", "created_at")
    search_fields = ("key",)
