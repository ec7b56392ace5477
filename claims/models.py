"""Our kinds. With a cluster a row mirrors the API server's object; without one the row is the object."""

import uuid

from django.db import models

from claims.choices import Phase


class ManifestRow(models.Model):
    """Metadata and `spec` of a manifest, as it was written. Cluster-scoped objects have an empty namespace."""

    namespace = models.CharField(max_length=63, blank=True)
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
        abstract = True

    def __str__(self) -> str:
        """namespace/name, or the name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class GpuClaim(ManifestRow):
    """A named request for devices in a namespace. `spec` is that of the manifest (`claims.dialects.claim_manifest`)."""

    class Meta:
        ordering = ("namespace", "name")
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="claim_once_a_namespace"),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="claim_phase_known"),
        ]


class GpuGang(ManifestRow):
    """Pods that are placed together or not at all. `spec`: `claims.queue_manifests.GangFields`."""

    class Meta:
        ordering = ("namespace", "name")
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="gang_once_a_namespace"),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="gang_phase_known"),
        ]


class GpuQueue(ManifestRow):
    """A queue with quotas by GPU model. `spec`: `claims.queue_manifests.QueueFields`."""

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="queue_once"),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="queue_phase_known"),
        ]
