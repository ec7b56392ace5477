"""Events in Django's admin, and the read-only base of every room's tables there.

`gpuplane.pages.admin_site` refuses writes, whatever is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from audit.models import Event

if TYPE_CHECKING:
    # Django's admin classes are generic for the type checker only
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class NoWrites:
    """Permissions of tables and inline rows that nobody changes."""

    def has_add_permission(self, *_: Any, **__: Any) -> bool:
        """Nobody."""
        return False

    has_change_permission = has_delete_permission = has_add_permission


class ReadOnly(NoWrites, ModelAdmin):
    """A table to read."""


@admin.register(Event)
class EventAdmin(ReadOnly):
    """Events."""

    list_display = ("at", "kind", "actor", "namespace", "name", "message")
    list_filter = ("kind",)
    search_fields = ("message",)
    show_full_result_count = False
