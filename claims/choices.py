"""Phases of a GpuClaim, as `status.phase` shows them."""

from django.db.models import TextChoices


class Phase(TextChoices):
    """Pending: nobody holds devices through the claim; Allocated: somebody does; Invalid: the spec breaks a rule."""

    PENDING = "Pending", "Pending"
    ALLOCATED = "Allocated", "Allocated"
    INVALID = "Invalid", "Invalid"
