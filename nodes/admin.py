"""Nodes and devices in Django's admin, for reading: inventories and the ledger write them."""

from django.contrib import admin

from audit.admin import ReadOnly
from nodes.models import Device, Node


@admin.register(Node)
class NodeAdmin(ReadOnly):
    """Nodes."""

    list_display = ("name", "mode", "state", "problem", "changed_at")
    list_filter = ("state", "mode")
    search_fields = ("name",)


@admin.register(Device)
class DeviceAdmin(ReadOnly):
    """Devices."""

    list_display = ("uuid", "node", "type", "minor", "model", "healthy", "presence", "core_used", "memory_used")
    list_filter = ("type", "healthy", "presence")
    list_select_related = ("node",)
    search_fields = ("uuid", "node__name")
