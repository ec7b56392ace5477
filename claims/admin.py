"""GpuClaims in Django's admin, for reading: REST and the API server write them."""

from django.contrib import admin

from audit.admin import ReadOnly
from claims.models import GpuClaim


@admin.register(GpuClaim)
class GpuClaimAdmin(ReadOnly):
    """Claims."""

    list_display = ("namespace", "name", "phase", "generation", "changed_at")
    list_filter = ("phase",)
    search_fields = ("namespace", "name")
