"""GpuClaims. With a cluster a row mirrors the API server's object; without one the row is the object."""

import uuid

from django.db import models

from claims.choices import Phase


class GpuClaim(models.Model):
    """A named request for devices in a namespace. `spec` is that of the manifest (`claims.dialects.claim_manifest`)."""

    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    generation = models.PositiveIntegerField(default=1)
    labels = models.JSONField(default=dict, blank=True)
    annotations = models.JSONField(default=dict, blank=True)
    spec = models.JSONField()
    phase = models.CharField(max_length=16, choices=Phase.choices, default=Phase.PENDING)
    conditions = models.JSONField(default=list, blank=True)
    resource_version = models.CharField(max_length=64, blank=True, default="", help_text="the API server's, if any")
    unchanged_versions = models.JSONField(
        default=list, blank=True, help_text="the last resourceVersions that differ in status only, oldest first"
    )
    published_status = models.JSONField(null=True, blank=True, help_text="status last written to the API server")
    created_by = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("namespace", "name")
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="claim_once_a_namespace"),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="claim_phase_known"),
        ]

    def __str__(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"
