"""The ledger in Django's admin, for reading: its verbs are its only writers."""

from django.contrib import admin

from allocations.models import Allocation, Lease, PodRefusal
from audit.admin import ReadOnly


@admin.register(Allocation)
class AllocationAdmin(ReadOnly):
    """Allocations."""

    list_display = ("id", "state", "namespace", "pod_name", "node", "claim_name", "created_at")
    list_filter = ("state", "dialect")
    list_select_related = ("node",)
    search_fields = ("namespace", "pod_name", "pod_uid", "holder")
    show_full_result_count = False


@admin.register(Lease)
class LeaseAdmin(ReadOnly):
    """Leases of the database port."""

    list_display = ("name", "holder_identity", "node", "acquired_at")
    search_fields = ("name", "holder_identity")


@admin.register(PodRefusal)
class PodRefusalAdmin(ReadOnly):
    """Pods that could not be placed."""

    list_display = ("namespace", "pod_name", "rule", "summary", "last_at", "count")
    search_fields = ("namespace", "pod_name")
