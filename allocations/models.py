"""The ledger's tables: who holds which device, in which state, and the embedded leases.

Written by `allocations.ledger` and `allocations.leases` alone. The database itself refuses a double booking (LEASE-2):
device columns are bounded by CHECK constraints, a whole device has one live grant, a pod UID one live allocation.
"""

import uuid

from django.db import models
from django.db.models import Q

from allocations.choices import LIVE, State
from allocations.reservation_models import GpuGroup, GroupBackOff
from claims.models import GpuClaim
from nodes.choices import Presence
from nodes.models import Device, Node
from storage.fencing import Fence

__all__ = [
    "AdvisedPod",
    "Allocation",
    "AllocationDevice",
    "GangState",
    "GpuGroup",
    "GroupBackOff",
    "Lease",
    "PodRefusal",
    "QueueFence",
    "QueueReservation",
    "QueueState",
    "QueueUsage",
    "QueueUsageMark",
]


class Allocation(models.Model):
    """Devices of one node given to one holder: a pod, or a client over REST."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=16, choices=State.choices)
    outcome = models.CharField(
        max_length=16, blank=True, default="", help_text="state that `releasing` ends in: released or failed"
    )
    reason = models.CharField(max_length=300, blank=True, default="", help_text="why it is releasing or ended")
    namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253, blank=True, default="", help_text="empty for REST holders")
    pod_uid = models.CharField(max_length=128, blank=True, default="", help_text="empty for REST holders")
    holder = models.CharField(max_length=460, help_text="holderIdentity of the leases")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    claim = models.ForeignKey(GpuClaim, null=True, blank=True, on_delete=models.SET_NULL, related_name="allocations")
    claim_name = models.CharField(max_length=253, blank=True, default="")
    dialect = models.CharField(max_length=16)
    request = models.JSONField(help_text="the DeviceRequest served")
    summary = models.CharField(max_length=500, blank=True, default="", help_text="the engine's words on the choice")
    explanation = models.JSONField(default=dict, help_text="reason → number of nodes, when it was decided")
    priority = models.IntegerField(
        null=True, blank=True, help_text="the pod's; null: a holder that preemption cannot evict"
    )
    confined = models.BooleanField(default=True, help_text="false: the pod runs without the injected env")
    bind_attempt = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="raised by whoever takes the reservation up; only the holder of the highest may send",
    )
    queue = models.CharField(
        max_length=253, blank=True, default="", db_default="", help_text="queue that the pod's label names"
    )
    gang = models.CharField(max_length=253, blank=True, default="", db_default="", help_text="name of the GpuGang")
    preemptible = models.BooleanField(
        default=True, db_default=True, help_text="whether queues may have the pod evicted"
    )
    pod_priority = models.IntegerField(default=0, db_default=0, help_text="the pod's, by which queues order")
    leaving_at = models.DateTimeField(
        null=True, blank=True, help_text="when the pod was asked to go, or was seen to be going; null: it stays"
    )
    pod_created = models.CharField(
        max_length=32, blank=True, default="", db_default="", help_text="the pod's creationTimestamp"
    )
    created_by = models.CharField(max_length=150, blank=True, default="")
    ttl_seconds = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    hold_until = models.DateTimeField(null=True, blank=True)
    reserved_at = models.DateTimeField(null=True, blank=True)
    bound_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="end of ttlSeconds")
    releasing_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField()
    retries = models.PositiveIntegerField(
        default=0, db_default=0, help_text="times that collection could not move it on since it moved last"
    )
    retry_at = models.DateTimeField(null=True, blank=True, help_text="when collection looks at it next; null: any time")
    attempt_version = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        help_text="resourceVersion of the pod as the hold's last filter saw it",
    )
    attempt_number = models.PositiveSmallIntegerField(
        db_default=0, help_text="earlier filters that prolonged this hold and saw the pod at that same version"
    )
    failure_seen = models.CharField(
        max_length=32, blank=True, db_default="", help_text="digest of the failed scheduling that the pod told of then"
    )
    failure_owed = models.BooleanField(
        db_default=False, help_text="the attempt before may have failed without the pod telling of it yet"
    )
    failure_credited = models.BooleanField(
        db_default=False, help_text="a failure that the pod told of since was taken for that of an earlier attempt"
    )

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = [
            models.UniqueConstraint(
                fields=["pod_uid"], condition=Q(state__in=LIVE) & ~Q(pod_uid=""), name="allocation_live_once_a_pod"
            ),
            models.CheckConstraint(condition=Q(state__in=State.values), name="allocation_state_known"),
            models.CheckConstraint(
                condition=~Q(state=State.RELEASING) | Q(outcome__in=(State.RELEASED, State.FAILED)),
                name="allocation_releasing_has_outcome",
            ),
        ]
        indexes = [
            models.Index(fields=["pod_uid"], name="allocation_pod_uid"),
            models.Index(fields=["namespace", "pod_name"], name="allocation_pod"),
            models.Index(fields=["state", "hold_until"], name="allocation_state_until"),
            models.Index(fields=["expires_at"], name="allocation_expires", condition=Q(state=State.BOUND)),
            models.Index(fields=["-created_at", "-id"], name="allocation_newest"),
            models.Index(fields=["ended_at"], name="allocation_ended", condition=Q(ended_at__isnull=False)),
            models.Index(fields=["namespace", "gang"], name="allocation_gang", condition=~Q(gang="")),
        ]

    def __str__(self) -> str:
        """Holder and state."""
        return f"{self.holder} {self.state}"


class AllocationDevice(models.Model):
    """One device, or a share of it, in an allocation. Core in percent, memory in bytes."""

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="devices")
    device = models.ForeignKey(
        Device,
        null=True,
        on_delete=models.SET_NULL,
        related_name="grants",
        help_text="null: long gone, in history only",
    )
    uuid = models.CharField(max_length=128)
    type = models.CharField(max_length=32)
    minor = models.PositiveIntegerField()
    core_percent = models.IntegerField()
    memory_bytes = models.BigIntegerField(help_text="0 where the type has no memory")
    whole = models.BooleanField()
    live = models.BooleanField(default=True, help_text="false once the allocation has ended")

    class Meta:
        ordering = ("type", "minor")
        constraints = [
            models.UniqueConstraint(fields=["allocation", "device"], name="grant_device_once"),
            models.UniqueConstraint(fields=["device"], condition=Q(whole=True, live=True), name="grant_whole_once"),
            models.CheckConstraint(
                condition=Q(core_percent__gte=0, core_percent__lte=100, memory_bytes__gte=0), name="grant_amounts_sane"
            ),
            models.CheckConstraint(condition=Q(live=False) | Q(device__isnull=False), name="grant_live_has_device"),
        ]

    def __str__(self) -> str:
        """Device and amounts."""
        return f"{self.type} {self.minor}: core {self.core_percent}, {self.memory_bytes} bytes"

    @property
    def problem(self) -> str:
        """What is wrong with the held device, empty where nothing is. Reads the device's row."""
        device = self.device if self.live else None
        if device is None:
            return ""
        if not device.healthy:
            return device.health_reason or "not healthy"
        return "" if device.presence == Presence.PRESENT else "not there any more"


class Lease(models.Model):
    """A lease without Kubernetes, of the same names and meaning."""

    name = models.CharField(max_length=300, unique=True)
    holder_identity = models.CharField(max_length=460)
    sharers = models.JSONField(default=list, blank=True)
    node = models.CharField(max_length=253)
    device_uuid = models.CharField(max_length=128)
    acquired_at = models.DateTimeField()
    version = models.PositiveBigIntegerField(default=1)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        """Name and holder."""
        return f"{self.name}: {self.holder_identity}"


class PodRefusal(models.Model):
    """A waiting pod: the last answer to it, and what its scheduler says, for explain and the pending list.

    `count`: how often the extender refused it; 0 where it was never asked.
    """

    pod_uid = models.CharField(max_length=128, unique=True)
    namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253)
    claim_name = models.CharField(max_length=253, blank=True, default="")
    request = models.JSONField(null=True, blank=True)
    rule = models.CharField(max_length=64, blank=True, default="")
    summary = models.CharField(max_length=500)
    reasons = models.JSONField(default=dict, help_text="reason → number of nodes")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    event_reasons = models.JSONField(default=list, blank=True, db_column="told", help_text="of the pod's last event")
    scheduler_name = models.CharField(max_length=253, blank=True, default="", help_text="the pod's `schedulerName`")
    scheduler_message = models.TextField(
        blank=True, default="", help_text="what the scheduler says of it (condition PodScheduled)"
    )
    pod_version = models.CharField(max_length=64, blank=True, default="", help_text="resourceVersion that was noted")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="when the watch or a comparison saw it wait")
    planned_at = models.DateTimeField(
        null=True, blank=True, help_text="when the engine looked at it unasked; null: it is to look"
    )
    gang = models.CharField(max_length=253, blank=True, default="", db_default="", help_text="name of the GpuGang")
    member = models.JSONField(
        null=True, blank=True, help_text="what queues decide by (`claims.membership.QueuedPod`); null: not queued"
    )

    class Meta:
        ordering = ("-last_at",)
        indexes = [
            models.Index(fields=["namespace", "pod_name"], name="refusal_pod"),
            models.Index(fields=["-last_at"], name="refusal_newest"),
        ]

    def __str__(self) -> str:
        """Pod and summary."""
        return f"{self.namespace}/{self.pod_name}: {self.summary}"


class QueueState(models.Model):
    """A queue as of the last decision."""

    name = models.CharField(max_length=253, unique=True)
    quotas = models.JSONField(default=list, help_text="of each quota: models, deserved, limit, fairShare, allocated")
    waiting = models.PositiveIntegerField(default=0, help_text="workloads that wait in it, and in queues below it")
    decided_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        """Name and workloads that wait."""
        return f"{self.name}: {self.waiting} waiting"


class GangState(models.Model):
    """Where a gang is between admission and standing whole."""

    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    admitted_at = models.DateTimeField(null=True, blank=True, help_text="null: it waits")
    stood_at = models.DateTimeField(null=True, blank=True, help_text="when `minMember` pods were bound")
    undone = models.PositiveIntegerField(default=0, help_text="times that it was undone since it stood last")
    retry_at = models.DateTimeField(null=True, blank=True, help_text="when it may be admitted again; null: any time")
    reason = models.CharField(max_length=500, blank=True, default="", help_text="why it waits")

    class Meta:
        ordering = ("namespace", "name")
        constraints = [models.UniqueConstraint(fields=["namespace", "name"], name="gang_state_once")]

    def __str__(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


class QueueReservation(models.Model):
    """Devices that come free for a pod of a queue, or that are new, and are kept for it (`Device.kept_for`)."""

    pod_uid = models.CharField(max_length=128, unique=True)
    priority = models.IntegerField()
    devices = models.JSONField(default=list, help_text="ids of the devices")
    growth = models.BooleanField(
        default=False, db_default=False, help_text="of a new node that was made for the pod; others are the queues'"
    )
    made_at = models.DateTimeField()
    until = models.DateTimeField()

    class Meta:
        ordering = ("made_at", "pk")

    def __str__(self) -> str:
        """The pod's UID."""
        return self.pod_uid


class QueueFence(Fence):
    """The fence of `allocations.ledger.queue_fence`."""

    admissions = models.BigIntegerField(default=0, help_text="transactions that held devices for workloads so far")

    class Meta:
        db_table = "allocations_queueturn"


class AdvisedPod(models.Model):
    """The request of a pod that filter advised on: in advisory mode without a cluster bind cannot read the pod."""

    pod_uid = models.CharField(max_length=128, unique=True)
    request = models.JSONField(db_column="asks", help_text="allocations.pod_request.PodRequest")
    at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("-at",)

    def __str__(self) -> str:
        """Pod."""
        return self.pod_uid


class QueueUsage(models.Model):
    """What a queue held of one model in one hour, for one namespace, in GPU-seconds. Ancestors have rows of their own.

    Written by `allocations.queue_usage`.
    """

    start = models.DateTimeField(help_text="of the hour")
    queue = models.CharField(max_length=253)
    namespace = models.CharField(max_length=63, blank=True, default="", help_text="empty: what was lent")
    model = models.CharField(max_length=128, blank=True, default="")
    held = models.FloatField(default=0)
    measured = models.FloatField(default=0, help_text="held while the utilisation was known")
    used = models.FloatField(default=0, help_text="measured times utilisation")
    borrowed = models.FloatField(default=0, help_text="held above deserved")
    lent = models.FloatField(default=0, help_text="deserved, and held by siblings")

    class Meta:
        ordering = ("start", "queue", "namespace", "model")
        constraints = [models.UniqueConstraint(fields=["start", "queue", "namespace", "model"], name="usage_hour_once")]
        indexes = [models.Index(fields=["queue", "start"], name="usage_queue")]

    def __str__(self) -> str:
        """Queue, namespace and hour."""
        return f"{self.queue} {self.namespace} {self.start:%Y-%m-%d %H:00}"


class QueueUsageMark(models.Model):
    """One row, id 1: the minutes before are added to `QueueUsage`."""

    until = models.DateTimeField()

    def __str__(self) -> str:
        """The moment."""
        return str(self.until)
