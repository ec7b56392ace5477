"""Django's admin for accounts and teams. Every change made there leaves an audit event, like those of the services.

The other rooms register their tables here for reading only: what the ledger and the services own is
not edited behind their backs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest
from typing_extensions import override

from access import tokens
from access.models import IdempotencyRecord, Profile, Team, TeamNamespace
from audit import services as audit
from audit.choices import Kind
from audit.clock import database_now

if TYPE_CHECKING:
    # Django's admin classes are generic for the type checker only
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    StackedInline = admin.StackedInline[Any, Any]
    AccountBase = UserAdmin[User]
else:
    ModelAdmin, TabularInline, StackedInline = admin.ModelAdmin, admin.TabularInline, admin.StackedInline
    AccountBase = UserAdmin


class ReadOnly(ModelAdmin):
    """Rows to look at."""

    @override
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class Audited(ModelAdmin):
    """Changes leave an audit event in the same transaction."""

    @override
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        _tell(request, obj, "created")
        return super().log_addition(request, obj, message)

    @override
    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        _tell(request, obj, "changed")
        return super().log_change(request, obj, message)

    @override
    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            _tell(request, obj, "deleted")
        return super().log_deletions(request, queryset)


def _tell(request: HttpRequest, obj: Any, verb: str) -> None:
    transaction.on_commit(tokens.forget)
    audit.record(
        kind=Kind.ACCESS_CHANGED,
        message=f"{obj._meta.verbose_name} {obj} {verb} in the admin",  # noqa: SLF001 - Django's public model API
        actor=request.user.get_username(),
        name=str(obj),
        now=database_now(),
    )


class ProfileInline(StackedInline):
    """Role of an account."""

    model = Profile
    can_delete = False
    fields = ("role", "service")


class NamespaceInline(TabularInline):
    """Namespaces of a team."""

    model = TeamNamespace
    extra = 1


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class AccountAdmin(Audited, AccountBase):
    """Accounts with their roles."""

    inlines = (ProfileInline,)
    list_display = ("username", "is_active", "is_staff", "is_superuser", "last_login")


@admin.register(Team)
class TeamAdmin(Audited):
    """Teams with their namespaces and members."""

    inlines = (NamespaceInline,)
    filter_horizontal = ("members",)
    search_fields = ("name",)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnly):
    """Answers kept for repeats."""

    list_display = ("key", "user", "method", "path", "status", "created_at")
    search_fields = ("key",)
