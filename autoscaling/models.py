"""Pools, scaling requests, their trigger pods, NodeClaims, and what is said to the pods that wait.

Written by `autoscaling.services`, `autoscaling.watching` and `autoscaling.rounds`.
"""

from django.db import models
from django.db.models import Q

from autoscaling.choices import ACTIVE, RequestState, ShapeSource, TriggerState
from storage.fencing import Fence


class Pool(models.Model):
    """A NodePool, and the shape of one of its nodes: `{"devices": […], "links": […]}` as in an inventory."""

    name = models.CharField(max_length=253, unique=True)
    weight = models.IntegerField(default=0)
    labels = models.JSONField(default=dict, help_text="that every node has: of the template, and fixed requirements")
    choices = models.JSONField(default=dict, help_text="label → values that its requirements allow, empty: any")
    excluded = models.JSONField(
        default=dict, null=True, blank=True, help_text="label → values that are excluded, where any other is allowed"
    )
    bounds = models.JSONField(
        default=dict, null=True, blank=True, help_text="label → least and most, where any value between is allowed"
    )
    taints = models.JSONField(default=list)
    limits = models.JSONField(default=dict, help_text="spec.limits")
    used = models.JSONField(default=dict, help_text="status.resources")
    instance_type = models.CharField(max_length=253, blank=True, default="", help_text="where there is only one")
    trigger_memory = models.BigIntegerField(default=0, help_text="bytes that a trigger pod asks for, for each GPU")
    stated = models.JSONField(null=True, blank=True, help_text="shape by the NodePool's annotations and labels")
    overruled = models.JSONField(null=True, blank=True, help_text="a stated shape that an inventory proved wrong")
    seen = models.JSONField(null=True, blank=True, help_text="shape by the inventory of the last node it made")
    given = models.JSONField(null=True, blank=True, help_text="shape by an operator")
    problem = models.CharField(max_length=300, blank=True, default="", help_text="why it is not used")
    closed = models.CharField(
        max_length=300, blank=True, default="", db_default="", help_text="why Karpenter makes no node of it for pods"
    )
    deleted_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField(help_text="when anything that the plan reads changed")

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        """Its name."""
        return self.name

    @property
    def source(self) -> ShapeSource:
        """Where its shape is known from."""
        if self.stated is not None and self.stated != self.overruled:
            return ShapeSource.STATED
        if self.seen is not None:
            return ShapeSource.SEEN
        return ShapeSource.OPERATOR if self.given is not None else ShapeSource.UNKNOWN

    @property
    def shape(self) -> dict[str, object] | None:
        """The shape that counts."""
        shapes = {
            ShapeSource.STATED: self.stated,
            ShapeSource.SEEN: self.seen,
            ShapeSource.OPERATOR: self.given,
        }
        found: dict[str, object] | None = shapes.get(self.source)
        return found


class ScalingRequest(models.Model):
    """Nodes of one pool that are wanted for one shape of need. Active ones are unique."""

    pool = models.CharField(max_length=253)
    model = models.CharField(max_length=128, blank=True, default="", help_text="of the pool's GPUs")
    shape = models.CharField(max_length=32, help_text="digest of `need`")
    need = models.JSONField(default=dict, help_text="selector, tolerations and device types of the pods")
    state = models.CharField(max_length=16, choices=RequestState.choices, default=RequestState.WANTED)
    wanted = models.PositiveIntegerField(default=0, help_text="nodes")
    ordinals = models.PositiveIntegerField(default=0, help_text="triggers that it ever had")
    reason = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField()
    triggered_at = models.DateTimeField(null=True, blank=True)
    launching_at = models.DateTimeField(null=True, blank=True)
    registered_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "model", "shape"], condition=Q(state__in=ACTIVE), name="scaling_request_active_once"
            ),
            models.CheckConstraint(condition=Q(state__in=RequestState.values), name="scaling_request_state_known"),
        ]
        indexes = [models.Index(fields=["-created_at", "-id"], name="scaling_request_newest")]

    def __str__(self) -> str:
        """Pool and state."""
        return f"{self.pool} {self.state}"


class Trigger(models.Model):
    """One node that is wanted, and the pod that makes Karpenter make it."""

    request = models.ForeignKey(ScalingRequest, on_delete=models.CASCADE, related_name="triggers")
    ordinal = models.PositiveIntegerField()
    name = models.CharField(max_length=63, unique=True, help_text="of the pod")
    state = models.CharField(max_length=16, choices=TriggerState.choices, default=TriggerState.WANTED)
    gpus = models.PositiveIntegerField()
    manifest = models.JSONField(default=dict, help_text="the pod as it is created")
    pods = models.JSONField(default=list, help_text="UIDs of the pods that it is for")
    uid = models.CharField(max_length=128, blank=True, default="", help_text="of the pod, once it is created")
    again = models.PositiveIntegerField(default=0, help_text="times that the pod had to be created again")
    node_claim = models.CharField(max_length=253, blank=True, default="")
    node = models.CharField(max_length=253, blank=True, default="")
    said = models.CharField(max_length=500, blank=True, default="", help_text="what the scheduler or Karpenter says")
    reason = models.CharField(max_length=500, blank=True, default="", help_text="why it failed or was withdrawn")
    created_at = models.DateTimeField(null=True, blank=True, help_text="when the pod was created first")
    ready_at = models.DateTimeField(null=True, blank=True, help_text="when its node was seen ready")
    served_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    pod_gone_at = models.DateTimeField(null=True, blank=True, help_text="when the pod was seen to be gone at the end")

    class Meta:
        ordering = ("request_id", "ordinal")
        constraints = [models.UniqueConstraint(fields=["request", "ordinal"], name="trigger_ordinal_once")]
        indexes = [models.Index(fields=["state"], name="trigger_state")]

    def __str__(self) -> str:
        """The pod's name."""
        return self.name


class NodeClaim(models.Model):
    """A NodeClaim of a pool, with the time of each step."""

    name = models.CharField(max_length=253)
    uid = models.CharField(max_length=128, unique=True)
    pool = models.CharField(max_length=253)
    trigger = models.CharField(max_length=63, blank=True, default="", help_text="name of the trigger pod it is for")
    node = models.CharField(max_length=253, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="", help_text="what its conditions say goes wrong")
    created_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True, blank=True)
    registered_at = models.DateTimeField(null=True, blank=True)
    initialized_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    inventory_at = models.DateTimeField(null=True, blank=True)
    protected = models.BooleanField(default=False, help_text="its node has our annotation do-not-disrupt")
    failed_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="node_claim_newest"),
            models.Index(fields=["name"], name="node_claim_name"),
        ]

    def __str__(self) -> str:
        """Its name."""
        return self.name


class PodGrowth(models.Model):
    """What the last plan says of a waiting pod."""

    pod_uid = models.CharField(max_length=128, unique=True)
    namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253)
    pool = models.CharField(max_length=253, blank=True, default="")
    trigger = models.CharField(max_length=63, blank=True, default="", help_text="name of the trigger pod; empty: none")
    reason = models.CharField(max_length=500, blank=True, default="", help_text="why no node is made for it")
    event_text = models.CharField(
        max_length=500, blank=True, default="", db_column="told", help_text="of its last event"
    )
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("namespace", "pod_name")
        indexes = [models.Index(fields=["namespace", "pod_name"], name="pod_growth_pod")]

    def __str__(self) -> str:
        """Pod and pool."""
        return f"{self.namespace}/{self.pod_name}: {self.pool or self.reason}"


class GrowthFence(Fence):
    """The fence of `autoscaling.rounds.fence`."""
