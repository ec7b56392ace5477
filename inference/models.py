"""Models, the runners that start them, their slots, and the requests that they serve. Memory in bytes.

Written by `inference` alone. A slot's memory is an ordinary allocation of the ledger (`Slot.allocation`), so the
constraints of devices keep pods and slots apart; rows here say what runs on it, and why.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from allocations.models import Allocation
from inference.choices import REQUEST_OPEN, KvKind, ModelRuntime, RequestState, RunnerState, State
from nodes.models import Node
from storage.fencing import Fence


class Model(models.Model):
    """A model that slots can run."""

    name = models.CharField(max_length=253, unique=True)
    runtime = models.CharField(max_length=16, choices=ModelRuntime.choices)
    source = models.CharField(max_length=4096, blank=True, default="", help_text="what the runtime is told to load")
    memory = models.BigIntegerField(null=True, blank=True, help_text="on one GPU; null: not given")
    memory_per_gpu = models.JSONField(default=dict, blank=True, help_text="number of GPUs, as text → bytes on each")
    parallel = models.PositiveIntegerField(default=4, help_text="requests at once in one slot")
    context_length = models.PositiveIntegerField(default=0, help_text="tokens of one request; 0: what the file says")
    kv_type = models.CharField(max_length=8, choices=KvKind.choices, default=KvKind.F16)
    gguf = models.CharField(max_length=4096, blank=True, default="", help_text="name of the file, where there is one")
    gguf_header = models.BinaryField(
        null=True, blank=True, help_text="what is kept of the file's header (`inference.gguf_headers`); null: not known"
    )
    heads = models.PositiveIntegerField(default=0, help_text="numbers of GPUs must divide them; 0: any number will do")
    gpu_counts = models.JSONField(default=list, blank=True, help_text="numbers of GPUs; empty: 1, 2, 4, 8")
    idle_seconds = models.PositiveIntegerField(default=300)
    keep_warm = models.PositiveIntegerField(default=0, help_text="slots that are always there")
    args = models.JSONField(default=list, blank=True, help_text="arguments of the runtime, a list")
    selector = models.JSONField(default=dict, blank=True, help_text="labels that the runner's node must have")
    image = models.CharField(max_length=512, blank=True, default="", help_text="of slots that are pods")
    revision = models.PositiveIntegerField(
        default=1, help_text="raised when anything changes that a running slot would have to be started anew for"
    )
    lacking = models.PositiveIntegerField(
        default=0, db_default=0, help_text="slots that `keep_warm` lacks and that have no place"
    )
    reason = models.CharField(max_length=500, blank=True, default="", db_default="", help_text="why they have none")
    created_by = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(condition=Q(runtime__in=ModelRuntime.values), name="model_runtime_known"),
            models.CheckConstraint(condition=Q(kv_type__in=KvKind.values), name="model_kv_type_known"),
            models.CheckConstraint(condition=Q(parallel__gte=1), name="model_serves_somebody"),
            models.CheckConstraint(condition=Q(memory__isnull=True) | Q(memory__gt=0), name="model_memory_above_zero"),
            models.CheckConstraint(condition=~Q(name=""), name="model_has_name"),
        ]

    def __str__(self) -> str:
        """Its name."""
        return self.name


class Runner(models.Model):
    """The program on a GPU node that starts slots; one a node."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="+")
    version = models.CharField(max_length=64, blank=True, default="")
    boot = models.CharField(max_length=64, blank=True, default="", help_text="random, kept on the machine's disk")
    address = models.CharField(max_length=253, blank=True, default="", help_text="host at which its slots are reached")
    runtimes = models.JSONField(default=list, blank=True, help_text="names of runtimes that it has")
    models_on_disk = models.JSONField(default=list, blank=True, help_text="sources of models")
    state = models.CharField(max_length=16, choices=RunnerState.choices, default=RunnerState.CONNECTED)
    session = models.PositiveBigIntegerField(
        default=0, help_text="number of its newest session: of two that give one node's name, the newer one counts"
    )
    seen_at = models.DateTimeField(help_text="when a message of that session came last")
    registered_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("node_id",)
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RunnerState.values), name="runner_state_known"),
        ]
        indexes = [models.Index(fields=["state", "seen_at"], name="runner_heard_of")]

    def __str__(self) -> str:
        """Node and state."""
        return f"runner of node {self.node_id}: {self.state}"


class Slot(models.Model):
    """One running model on chosen GPUs of one runner."""

    id = models.CharField(primary_key=True, max_length=16, editable=False)
    model = models.ForeignKey(Model, null=True, blank=True, on_delete=models.SET_NULL, related_name="slots")
    model_name = models.CharField(max_length=253)
    model_revision = models.PositiveIntegerField(help_text="`Model.revision` by which it was planned")
    lora = models.CharField(max_length=253, blank=True, default="")
    launch = models.JSONField(default=dict, help_text="what is started (`inference.launch.Launch`), as it was planned")
    node = models.CharField(max_length=253, help_text="name")
    runner = models.ForeignKey(
        Runner, null=True, blank=True, on_delete=models.SET_NULL, related_name="slots", help_text="null: a pod's"
    )
    allocation = models.OneToOneField(
        Allocation,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="null: its GPUs are not held yet",
    )
    pod_name = models.CharField(
        max_length=63, blank=True, default="", db_default="", help_text="of a slot that is a pod; empty: a runner's"
    )
    pod_uid = models.CharField(
        max_length=128, blank=True, default="", db_default="", help_text="once the pod was seen; empty before"
    )
    gpus = models.JSONField(help_text="minors, ascending")
    memory = models.JSONField(help_text="what it claims of each of them")
    evicts = models.JSONField(default=list, blank=True, help_text="ids of slots that have to be gone first")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PLANNED)
    address = models.CharField(max_length=300, blank=True, default="", help_text="host:port; empty until it listens")
    reason = models.CharField(max_length=500, blank=True, default="", help_text="why it drains, failed or stopped")
    log_tail = models.TextField(blank=True, default="", help_text="the last lines that its process wrote")
    active = models.PositiveIntegerField(default=0, help_text="requests that it runs")
    attempt = models.PositiveIntegerField(
        default=1, help_text="1, and one more for each slot of its model and LoRA that failed before without one ready"
    )
    own_failure = models.BooleanField(
        default=True, db_default=True, help_text="false: it failed by its runner or GPU, for which no model is put off"
    )
    planned_at = models.DateTimeField()
    starting_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="when a request began or ended there last")
    draining_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("-planned_at", "-id")
        constraints = [
            models.CheckConstraint(condition=Q(state__in=State.values), name="slot_state_known"),
            models.CheckConstraint(condition=~Q(state=State.READY) | ~Q(address=""), name="slot_ready_has_address"),
            models.CheckConstraint(
                condition=~Q(state__in=(State.STARTING, State.READY)) | Q(allocation__isnull=False),
                name="slot_runs_on_what_it_holds",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.STOPPED) | Q(stopped_at__isnull=False), name="slot_stopped_has_time"
            ),
        ]
        indexes = [
            models.Index(fields=["-planned_at", "-id"], name="slot_newest"),
            models.Index(fields=["model_name", "state"], name="slot_model_state"),
            models.Index(fields=["node", "state"], name="slot_node_state"),
            models.Index(fields=["stopped_at"], name="slot_ended", condition=Q(stopped_at__isnull=False)),
        ]

    def __str__(self) -> str:
        """Model, id and state."""
        return f"{self.model_name} {self.id}: {self.state}"


class Gateway(models.Model):
    """A web process that passes requests on to slots. What it serves ends with it (`inference.dispatch.gateways`)."""

    id = models.CharField(primary_key=True, max_length=16, editable=False)
    host = models.CharField(max_length=253, blank=True, default="")
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-started_at", "-id")
        indexes = [models.Index(fields=["seen_at"], name="gateway_lives", condition=Q(ended_at__isnull=True))]

    def __str__(self) -> str:
        """Host and id."""
        return f"gateway {self.id} on {self.host}"


class Turn(models.Model):
    """When a waiting request of an API token was last given a place, for taking turns (`inference.dispatch.order`)."""

    model_name = models.CharField(max_length=253)
    lora = models.CharField(max_length=253, blank=True, default="")
    token = models.CharField(max_length=64)
    served_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model_name", "lora", "token"], name="turn_once")]

    def __str__(self) -> str:
        """Model and token."""
        return f"{self.model_name}: {self.token[:8]}"


class Request(models.Model):
    """An inference request that waits, runs or has ended. Its id is that of `X-Request-Id`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model_name = models.CharField(max_length=253)
    lora = models.CharField(max_length=253, blank=True, default="")
    priority = models.IntegerField(default=0)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    slot = models.ForeignKey(
        Slot,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="requests",
        help_text="that runs it, or that it waits for",
    )
    state = models.CharField(max_length=16, choices=RequestState.choices, default=RequestState.WAITING)
    reason = models.CharField(max_length=500, blank=True, default="", help_text="why it waits, failed or was refused")
    arrived_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    first_byte_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    tokens = models.PositiveIntegerField(default=0, help_text="of the answer")
    gateway = models.ForeignKey(
        Gateway, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="that holds the client"
    )
    token = models.CharField(max_length=64, blank=True, default="", help_text="beginning of its API token's digest")
    tried = models.JSONField(default=dict, blank=True, help_text="slot that refused it → when, in seconds since 1970")

    class Meta:
        ordering = ("-arrived_at", "-id")
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RequestState.values), name="request_state_known"),
        ]
        indexes = [
            models.Index(fields=["-arrived_at", "-id"], name="request_newest"),
            models.Index(
                fields=["model_name", "-priority", "arrived_at", "id"],
                name="request_waiting",
                condition=Q(state=RequestState.WAITING),
            ),
            models.Index(fields=["slot"], name="request_running", condition=Q(state=RequestState.RUNNING)),
            models.Index(fields=["ended_at"], name="request_ended", condition=Q(ended_at__isnull=False)),
            models.Index(fields=["gateway"], name="request_open", condition=Q(state__in=REQUEST_OPEN)),
        ]

    def __str__(self) -> str:
        """Model and state."""
        return f"{self.model_name}: {self.state}"


class SlotFence(Fence):
    """The fence of `inference.rounds.fence`."""
