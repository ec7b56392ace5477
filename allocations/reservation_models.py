"""Groups: GPUs of nodes in mode device-plugin that a reservation pod keeps from the kubelet's other pods.

Written by `allocations.ledger.groups` alone. A group has devices from its first moment: until its reservation pod has
reported which GPUs the kubelet chose, they are a guess, that is any GPUs of the node that nobody has. The devices name
their group (`nodes.models.Device.gpu_group`), so the constraints of devices refuse a group for which no GPU is left.
"""

import uuid

from django.db import models
from django.db.models import Q

from allocations.choices import GroupState
from nodes.models import Node


class GpuGroup(models.Model):
    """GPUs that one reservation pod has: one that sharers share, or several whole ones of one holder."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, help_text="value of the label runai-gpu-group")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpu_groups")
    state = models.CharField(max_length=16, choices=GroupState.choices)
    gpus = models.PositiveIntegerField(default=1, help_text="how many GPUs its reservation pod asks for")
    shared = models.BooleanField(help_text="its GPU takes sharers; false: all GPUs are one holder's")
    uuids = models.JSONField(default=list, help_text="what the reservation pod reported; empty: not known yet")
    pod_namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253)
    pod_uid = models.CharField(max_length=128, blank=True, default="", help_text="empty: not made yet, or it is gone")
    reason = models.CharField(max_length=300, blank=True, default="", help_text="why it is unprotected or ended")
    retries = models.PositiveIntegerField(default=0, help_text="reservation pods in vain since it was ready last")
    retry_at = models.DateTimeField(null=True, blank=True, help_text="when the next one may be made; null: any time")
    past_pods = models.CharField(
        max_length=600,
        blank=True,
        default="",
        db_default="",
        help_text="UIDs of the pod that was lost and of those in vain since, the newest, separated by commas",
    )
    vain_record = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="digest of the kubelet's record when the last one was in vain, without the past pods",
    )
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True, help_text="when its reservation pod was made")
    ready_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("node_id", "created_at", "name")
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=~Q(state=GroupState.GONE), name="gpu_group_name_once"),
            models.UniqueConstraint(
                fields=["pod_namespace", "pod_name"], condition=~Q(state=GroupState.GONE), name="gpu_group_pod_once"
            ),
            models.CheckConstraint(condition=Q(state__in=GroupState.values), name="gpu_group_state_known"),
            models.CheckConstraint(condition=Q(gpus__gte=1), name="gpu_group_has_gpus"),
            models.CheckConstraint(condition=Q(shared=False) | Q(gpus=1), name="gpu_group_shares_one"),
            models.CheckConstraint(
                condition=~Q(state__in=(GroupState.READY, GroupState.UNPROTECTED)) | ~Q(uuids=[]),
                name="gpu_group_ready_has_uuids",
            ),
        ]
        indexes = [
            models.Index(fields=["state"], name="gpu_group_state", condition=~Q(state=GroupState.GONE)),
            models.Index(fields=["pod_uid"], name="gpu_group_pod_uid"),
        ]

    def __str__(self) -> str:
        """Name and state."""
        return f"{self.name} {self.state}"


class GroupBackOff(models.Model):
    """A node on which groups could not be made lately: none is begun before `until`."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="group_back_off")
    failures = models.PositiveIntegerField(help_text="in a row")
    until = models.DateTimeField()
    reason = models.CharField(max_length=300)

    class Meta:
        ordering = ("node_id",)

    def __str__(self) -> str:
        """Node and failures."""
        return f"{self.node_id}: {self.failures}"
