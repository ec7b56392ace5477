"""The append-only record of every state change.

Rows are written by `audit.services`, never updated, and deleted after `GPUPLANE_AUDIT_DAYS`.
"""

from django.db import models

from audit.choices import EventKind


class Event(models.Model):
    """One state change. Everybody who sees the event's namespace reads `message` and `data`; they name no other one's
    objects, `other` does.
    """

    at = models.DateTimeField()
    kind = models.CharField(max_length=48, choices=EventKind.choices)
    actor = models.CharField(max_length=150, help_text="user name, `scheduler`, `collector`, …")
    namespace = models.CharField(max_length=63, blank=True, default="")
    name = models.CharField(max_length=253, blank=True, default="", help_text="the pod, claim, node or user concerned")
    node = models.CharField(max_length=253, blank=True, default="")
    claim = models.CharField(max_length=253, blank=True, default="")
    allocation_id = models.UUIDField(null=True, blank=True)
    message = models.CharField(max_length=500)
    data = models.JSONField(default=dict)
    other = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text=(
            "who else is concerned, such as the holder of a lease; named to those alone who see `other_namespace`"
        ),
    )
    other_namespace = models.CharField(
        max_length=63, blank=True, default="", db_default="", help_text="empty: only those who see all namespaces"
    )

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=["at"], name="event_at"),
            models.Index(fields=["namespace", "name", "-id"], name="event_object"),
            models.Index(fields=["namespace", "claim", "-id"], name="event_claim", condition=~models.Q(claim="")),
            models.Index(fields=["node", "-id"], name="event_node", condition=~models.Q(node="")),
            models.Index(fields=["allocation_id", "-id"], name="event_allocation"),
        ]

    def __str__(self) -> str:
        """The sentence with its kind."""
        return f"{self.kind}: {self.message}"
