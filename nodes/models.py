"""Nodes and their devices.

Written by `nodes.services`, except `Device.core_used`, `memory_used`, `kept_…`, `gpu_group…`, `no_group_until`,
`conflict` and `revision` by `allocations`, and `idle_since` and the rollups by `nodes.history`. Kept by constraints: a
device is never used beyond its size, a UUID is unique in the fleet, a minor per node and type.
"""

from django.db import models
from django.db.models import F, Q

from nodes.choices import Mode, NodeState, Presence


class Revision(models.Model):
    """The counter of `Device.revision` on SQLite: one row, id 1. On PostgreSQL this table stays empty."""

    value = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.value)


class Node(models.Model):
    """One machine with devices."""

    name = models.CharField(max_length=253, unique=True)
    mode = models.CharField(max_length=16, choices=Mode.choices, default=Mode.EXCLUSIVE)
    labels = models.JSONField(default=dict, blank=True)
    taints = models.JSONField(default=list, blank=True, null=True, help_text="spec.taints of the Node object")
    unschedulable = models.BooleanField(default=False, db_default=False, help_text="cordoned")
    links = models.JSONField(
        default=list, blank=True, help_text="[[minor, minor, NVLinks], …], lower minor first, sorted"
    )
    state = models.CharField(max_length=16, choices=NodeState.choices, default=NodeState.READY)
    problem = models.CharField(max_length=200, blank=True, default="", help_text="why nothing new is placed here")
    cluster_uid = models.CharField(max_length=128, blank=True, default="", help_text="UID of the Node object")
    disputed = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="JSON of what it claims and other nodes have (`nodes.disputed_devices`)",
    )
    agent_boot = models.CharField(max_length=64, blank=True, default="")
    agent_seen_at = models.DateTimeField(null=True, blank=True, help_text="null: never had an agent session")
    frame_boot = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="of the newest frame of its agent that changed the database (`nodes.frame_order`)",
    )
    frame_seq = models.BigIntegerField(default=-1, db_default=-1, help_text="its number")
    frame_time = models.FloatField(default=0.0, db_default=0.0, help_text="its time, in seconds since 1970")
    frame_stored_at = models.DateTimeField(null=True, blank=True, help_text="null: there was none")
    registered_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="node_mode_known"),
            models.CheckConstraint(condition=Q(state__in=NodeState.values), name="node_state_known"),
        ]

    def __str__(self) -> str:
        return self.name


class Device(models.Model):
    """One GPU, MIG instance, NIC, FPGA or other device of a node. Core in percent of the device, memory in bytes.

    `stranger` is derived from leases, `closed` from running pods and MIG devices (`allocations.reconcile.closing`).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    type = models.CharField(max_length=32)
    minor = models.PositiveIntegerField()
    uuid = models.CharField(max_length=128)
    model = models.CharField(max_length=128, blank=True, default="")
    memory_bytes = models.BigIntegerField(default=0, help_text="0 where the type has no memory")
    numa = models.IntegerField(default=-1)
    pcie = models.CharField(max_length=32, blank=True, default="", help_text="PCIe switch")
    bus_id = models.CharField(max_length=16, blank=True, default="", db_default="", help_text="PCI address")
    island = models.IntegerField(default=-1, help_text="NVLink island within the node, -1 for other types")
    healthy = models.BooleanField(default=True)
    health_reason = models.CharField(max_length=200, blank=True, default="")
    health_said = models.CharField(  # noqa: DJ001 - null and empty differ
        max_length=200,
        null=True,
        blank=True,
        help_text="while its health flaps: what was said last, empty where well; null: what was said counts",
    )
    flaps = models.PositiveIntegerField(
        default=0, db_default=0, help_text="changes of health that came one soon after the other (`nodes.flapping`)"
    )
    flaps_since = models.DateTimeField(null=True, blank=True, help_text="the first of them")
    flapped_at = models.DateTimeField(null=True, blank=True, help_text="the last of them")
    presence = models.CharField(max_length=16, choices=Presence.choices, default=Presence.PRESENT)
    mig = models.BooleanField(
        default=False, db_default=False, help_text="a GPU in MIG mode: only its instances are given to pods"
    )
    parent = models.CharField(
        max_length=128, blank=True, default="", db_default="", help_text="of a MIG instance: UUID of its GPU"
    )
    profile = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="of a MIG instance: 1g.10gb"
    )
    stranger = models.CharField(max_length=300, blank=True, default="", help_text="who holds it outside the ledger")
    closed = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text="why nobody new gets it: a running pod, say, of which nobody can tell what it holds",
    )
    conflict = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text=(
            "pods (namespace/name, …) that run with it although the ledger gave it away; closed to newcomers meanwhile"
        ),
    )
    kept_for = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="UIDs of the pods that it is kept for, with commas: several share a new device",
    )
    kept_priority = models.IntegerField(default=0, db_default=0, help_text="of those pods: who is above them passes")
    kept_until = models.DateTimeField(null=True, blank=True)
    gpu_group = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="name of the group of sharers that has it by a reservation pod (`allocations.reservation_models`)",
    )
    gpu_group_open = models.BooleanField(default=False, db_default=False, help_text="whether that group takes sharers")
    no_group_until = models.DateTimeField(
        null=True, blank=True, help_text="no new group begins here before; null: any time"
    )
    core_used = models.IntegerField(default=0)
    memory_used = models.BigIntegerField(default=0)
    revision = models.BigIntegerField(default=0)
    idle_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="held and measured idle since then; null: it works, is free, or is not measured",
    )
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("node_id", "type", "minor")
        constraints = [
            models.UniqueConstraint(
                fields=["node", "type", "minor"], condition=~Q(presence="removed"), name="device_minor_once"
            ),
            models.UniqueConstraint(fields=["uuid"], condition=~Q(presence="removed"), name="device_uuid_once"),
            models.CheckConstraint(condition=Q(core_used__gte=0, core_used__lte=100), name="device_core_within"),
            models.CheckConstraint(
                condition=Q(memory_used__gte=0, memory_used__lte=F("memory_bytes")), name="device_memory_within"
            ),
            models.CheckConstraint(condition=Q(presence__in=Presence.values), name="device_presence_known"),
            models.CheckConstraint(
                condition=Q(gpu_group_open=False) | ~Q(gpu_group=""), name="device_open_group_has_name"
            ),
        ]
        indexes = [
            models.Index(fields=["revision"], name="device_revision"),
            models.Index(fields=["node"], name="device_in_conflict", condition=~Q(conflict="")),
            models.Index(fields=["gpu_group"], name="device_gpu_group", condition=~Q(gpu_group="")),
            models.Index(fields=["flapped_at"], name="device_flapping", condition=Q(health_said__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.minor} of {self.node_id}"

    @property
    def is_allocated(self) -> bool:
        """Whether any of it is allocated by the ledger."""
        return bool(self.core_used or self.memory_used)

    @property
    def is_kept(self) -> bool:
        """Whether anybody but the ledger's holders has it, or may have it."""
        return bool(self.stranger or self.conflict or self.closed)

    @property
    def is_held(self) -> bool:
        """Whether any of it is held, a reservation pod has it, or it is closed to new pods."""
        return self.is_allocated or self.is_kept or bool(self.gpu_group)

    @property
    def is_free(self) -> bool:
        """Whether nothing of it is held and it is open to new pods; it may be unhealthy."""
        return not (self.is_held or self.mig)


class KubeletCheckpoint(models.Model):
    """Devices that a node's kubelet gave to containers, by its checkpoint (DEV-8); written by `nodes.checkpoints`."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="checkpoint")
    entries = models.JSONField(default=list, help_text="[[pod UID, container, resource, [device id, …]], …]")
    read_at = models.DateTimeField(help_text="when it last said something else than before")

    class Meta:
        ordering = ("node_id",)

    def __str__(self) -> str:
        return f"checkpoint of {self.node_id}"


class PreemptionReservation(models.Model):
    """A node where preemption is to free devices for a pod (`allocations.scheduling.preemption`).

    Until `until` the node advertises only as many `gpu.scheduling/pods` as it runs (`nodes.advertise`), and its devices
    are kept for the pod (`Device.kept_for`).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="preemption_reservations")
    pod_uid = models.CharField(max_length=128, unique=True, help_text="the pod that is to have the devices")
    namespace = models.CharField(max_length=63)
    pod_name = models.CharField(max_length=253)
    priority = models.IntegerField()
    pods = models.PositiveIntegerField(help_text="what the node advertises meanwhile; the same in all rows of a node")
    victims = models.JSONField(default=list, help_text="UIDs of the pods that are to go")
    devices = models.JSONField(default=list, help_text="ids of the devices that the pod is to have")
    victims_sent = models.BooleanField(default=False, db_column="told", help_text="to kube-scheduler")
    made_at = models.DateTimeField()
    until = models.DateTimeField()

    class Meta:
        db_table = "nodes_makingway"
        ordering = ("made_at", "pk")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod_name}"


class PreemptedInVain(models.Model):
    """A node where preemption for a pod did not help, and is not tried again before `until`
    (`allocations.scheduling.preemption`).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="preempted_in_vain")
    pod_uid = models.CharField(max_length=128)
    until = models.DateTimeField()

    class Meta:
        ordering = ("pod_uid", "node_id")
        constraints = [models.UniqueConstraint(fields=["pod_uid", "node"], name="preempted_in_vain_once")]

    def __str__(self) -> str:
        return f"{self.pod_uid} on {self.node_id}"


class Rollup(models.Model):
    """History of one node's GPUs in one minute or hour: `nodes.history.figures.Figures`, packed."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="rollups")
    seconds = models.PositiveIntegerField(help_text="60 or 3600")
    start = models.DateTimeField()
    body = models.BinaryField()

    class Meta:
        ordering = ("node_id", "seconds", "start")
        constraints = [models.UniqueConstraint(fields=["node", "seconds", "start"], name="rollup_once")]
        indexes = [models.Index(fields=["seconds", "start"], name="rollup_age")]

    def __str__(self) -> str:
        return f"{self.node_id} at {self.start:%Y-%m-%d %H:%M}"


class FleetRollup(models.Model):
    """Totals of the fleet, and of each model and pool, in one minute or hour; written after the last `Rollup` of it."""

    seconds = models.PositiveIntegerField(help_text="60 or 3600")
    start = models.DateTimeField()
    groups = models.JSONField(
        default=dict, help_text="group (`all`, `model:…`, `pool:…`) → sums (`nodes.history.totals.Totals`)"
    )

    class Meta:
        ordering = ("seconds", "start")
        constraints = [models.UniqueConstraint(fields=["seconds", "start"], name="fleet_rollup_once")]

    def __str__(self) -> str:
        return f"fleet at {self.start:%Y-%m-%d %H:%M}"
