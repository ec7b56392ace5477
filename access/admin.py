"""Django's admin for accounts, teams and tokens. Every change made there leaves an audit event, like those of the services.

Tokens are revoked there by the services, and neither made nor changed. An account that is shut or deleted there loses its tokens at once.

The other rooms register their tables here for reading only: what the ledger and the services own is
not edited behind their backs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from knox import admin as knox_admin
from knox.models import AuthToken
from typing_extensions import override

from access import changes
from access.actors import Actor
from access.choices import Role, TokenScope
from access.errors import NotAllowed
from access.models import IdempotencyRecord, Profile, Team, TeamNamespace
from access.selectors import actor_of, scope_of, token_list
from access.services import RESERVED_NAMES
from access.token_services import SHOWN, token_revoke, tokens_revoke
from audit import services as audit
from audit.choices import Kind
from audit.clock import database_now

if TYPE_CHECKING:
    # Django's admin classes are generic for the type checker only
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    StackedInline = admin.StackedInline[Any, Any]
    AccountBase = UserAdmin[User]
    CreationForm = AdminUserCreationForm[User]
    ChangeForm = UserChangeForm[User]
    ProfileModelForm = ModelForm[Profile]
else:
    ModelAdmin, TabularInline, StackedInline = admin.ModelAdmin, admin.TabularInline, admin.StackedInline
    AccountBase = UserAdmin
    CreationForm = AdminUserCreationForm
    ChangeForm = UserChangeForm
    ProfileModelForm = ModelForm


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
    """Changes leave an audit event in the same transaction, and are told once that has ended."""

    @override
    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *more: Any, **others: Any
    ) -> HttpResponse | None:
        """What is done to the chosen rows: Django itself has a transaction around its forms only."""
        with transaction.atomic():
            return super().response_action(request, queryset, *more, **others)

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
    changes.tell()
    audit.record(
        kind=Kind.ACCESS_CHANGED,
        message=f"{obj._meta.verbose_name} {obj} {verb} in the admin",  # noqa: SLF001 - Django's public model API
        actor=request.user.get_username(),
        name=str(obj),
        now=database_now(),
    )


class ProfileForm(ProfileModelForm):
    """Nobody but an agent names a node. No rule of the database: older processes write rows without a scope."""

    def clean(self) -> dict[str, Any] | None:
        """Raises ValidationError."""
        cleaned = super().clean()
        given = cleaned if cleaned is not None else self.cleaned_data
        if given.get("node") and given.get("scope") != TokenScope.AGENT:
            raise ValidationError({"node": "only an agent's account names a node"})
        return cleaned


class ProfileInline(StackedInline):
    """Role of an account."""

    model = Profile
    form = ProfileForm
    can_delete = False
    fields = ("role", "service", "scope", "node")


class _NotReserved:
    """Of the forms of accounts: names by which the audit trail calls gpuplane itself are nobody's."""

    cleaned_data: dict[str, Any]

    def clean_username(self) -> str:
        """Raises ValidationError."""
        checked = getattr(super(), "clean_username", None)
        username = str(checked() if checked is not None else self.cleaned_data["username"])
        if username in RESERVED_NAMES:
            raise ValidationError(f"{username} names gpuplane itself in the audit trail", code="reserved")
        return username


class AccountCreationForm(_NotReserved, CreationForm):
    """A new account."""


class AccountChangeForm(_NotReserved, ChangeForm):
    """An account that is there."""


class NamespaceInline(TabularInline):
    """Namespaces of a team."""

    model = TeamNamespace
    extra = 1


admin.site.unregister(User)
admin.site.unregister(Group)
admin.site.unregister(knox_admin.models.AuthToken)  # its module registers it when it is imported


@admin.register(User)
class AccountAdmin(Audited, AccountBase):
    """Accounts with their roles."""

    form = AccountChangeForm
    add_form = AccountCreationForm
    inlines = (ProfileInline,)
    list_display = ("username", "is_active", "is_staff", "is_superuser", "last_login")

    @override
    def save_model(self, request: HttpRequest, obj: User, form: ModelForm[Any], change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and "is_active" in form.changed_data and not obj.is_active:
            tokens_revoke(user=obj, actor=_actor(request), now=database_now())

    @override
    def save_formset(self, request: HttpRequest, form: ModelForm[Any], formset: Any, change: bool) -> None:
        """Tokens that were given for one thing open no other: they are revoked with the change."""
        super().save_formset(request, form, formset, change)
        opens = any({"service", "scope", "node"} & set(row.changed_data) for row in formset.forms)
        if change and formset.model is Profile and opens:
            tokens_revoke(user=form.instance, actor=_actor(request), now=database_now())

    @override
    def delete_model(self, request: HttpRequest, obj: User) -> None:
        _without_tokens(request, obj)
        super().delete_model(request, obj)

    @override
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            _without_tokens(request, user)
        super().delete_queryset(request, queryset)


def _without_tokens(request: HttpRequest, user: User) -> None:
    """Revoke what tokens an account still has: deleted with it they would leave no event."""
    if AuthToken.objects.filter(user=user).exists():
        tokens_revoke(user=user, actor=_actor(request), now=database_now())


def _actor(request: HttpRequest) -> Actor:
    """Who acts here. Raises PermissionDenied for staff who are no admins."""
    try:
        actor = actor_of(request.user)
        actor.require_admin()
    except NotAllowed as error:
        raise PermissionDenied(str(error)) from error
    return actor


@admin.register(AuthToken)
class TokenAdmin(ReadOnly):
    """Tokens: to look at, and to revoke."""

    list_display = ("shown", "user", "scope", "created", "expiry", "last_used_at")
    search_fields = ("user__username",)
    fields = list_display
    show_full_result_count = False

    @admin.display(description="token")
    def shown(self, token: AuthToken) -> str:
        """Its beginning."""
        return f"{token.token_key[:SHOWN]}…"

    @admin.display(description="scope")
    def scope(self, token: AuthToken) -> str:
        """Of its account."""
        profile = getattr(token.user, "profile", None)
        return TokenScope.REST.value if profile is None else scope_of(profile).value

    @admin.display(description="last used")
    def last_used_at(self, token: AuthToken) -> Any:
        """To the minute."""
        use = getattr(token, "use", None)
        return None if use is None else use.last_used_at

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[AuthToken]:
        return token_list(actor=_actor(request))

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return actor_of(request.user).role == Role.ADMIN

    @override
    def delete_model(self, request: HttpRequest, obj: AuthToken) -> None:
        token_revoke(token=obj, actor=_actor(request), now=database_now())

    @override
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[AuthToken]) -> None:
        for token in queryset:
            token_revoke(token=token, actor=_actor(request), now=database_now())


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
