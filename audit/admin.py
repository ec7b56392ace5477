"""Events in Django's admin, for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from typing_extensions import override

from audit.models import Event

if TYPE_CHECKING:
    # Django's admin classes are generic for the type checker only
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(Event)
class EventAdmin(ModelAdmin):
    """What happened; append-only."""

    list_display = ("at", "kind", "actor", "namespace", "name", "message")
    list_filter = ("kind",)
    search_fields = ("message",)
    show_full_result_count = False

    @override
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
