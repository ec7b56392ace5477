"""Models, runners, slots and requests of a scenario in the OpenAPI schema, and models as they are written.

`allocations.scenario` and `inference.model_fields` read them.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from allocations.engine.gguf import KvType
from allocations.engine.slots.records import Runtime, SlotState
from gpuplane.rest.fields import AnyObjectField, QuantityField

RUNTIMES = [runtime.value for runtime in Runtime]
KV_TYPES = [KvType.F16.value, KvType.Q8_0.value, KvType.Q4_0.value]


class ScenarioModelSchema(serializers.Serializer[Any]):
    """A model."""

    name = serializers.CharField(max_length=253)
    runtime = serializers.ChoiceField(choices=RUNTIMES)
    source = serializers.CharField(required=False)  # type: ignore[assignment]  # the scenario's name, as Field's own
    memory = QuantityField(required=False, help_text="on one GPU; required for vllm")
    memoryPerGpu = AnyObjectField(required=False, help_text="GPUs → amount on each")  # noqa: N815 - the scenario's name
    parallel = serializers.IntegerField(required=False, min_value=1, help_text="requests at once in a slot")
    contextLength = serializers.IntegerField(required=False, min_value=1)  # noqa: N815 - the scenario's name
    kvType = serializers.ChoiceField(required=False, choices=KV_TYPES)  # noqa: N815 - the scenario's name
    gguf = serializers.CharField(required=False, help_text="a file, which only manage.py simulate reads")
    heads = serializers.IntegerField(required=False, min_value=1, help_text="numbers of GPUs must divide them")
    gpuCounts = serializers.ListField(child=serializers.IntegerField(min_value=1), required=False)  # noqa: N815 - the scenario's name
    idleSeconds = serializers.IntegerField(required=False, min_value=0)  # noqa: N815 - the scenario's name
    keepWarm = serializers.IntegerField(required=False, min_value=0, max_value=1_000)  # noqa: N815 - the scenario's name
    args = serializers.ListField(child=serializers.CharField(), required=False)
    selector = serializers.DictField(child=serializers.CharField(), required=False, help_text="labels of nodes")


class ModelWriteSchema(ScenarioModelSchema):
    """A model as written."""

    name = serializers.CharField(max_length=200)
    gguf = serializers.CharField(required=False, help_text="name of the file by whose header the memory is estimated")
    image = serializers.CharField(required=False, max_length=512, help_text="of slots that are pods")


class ScenarioSlotSchema(serializers.Serializer[Any]):
    """A slot as it is."""

    id = serializers.CharField(max_length=253)
    model = serializers.CharField(max_length=253)
    lora = serializers.CharField(required=False, allow_blank=True, max_length=253)
    gpus = serializers.ListField(child=serializers.IntegerField(min_value=0), help_text="minors")
    memory = serializers.ListField(child=QuantityField(), help_text="on each of them")
    state = serializers.ChoiceField(required=False, choices=[state.value for state in SlotState])
    active = serializers.IntegerField(required=False, min_value=0, help_text="requests in it")
    idleSeconds = serializers.IntegerField(required=False, min_value=0)  # noqa: N815 - the scenario's name


class ScenarioRunnerSchema(serializers.Serializer[Any]):
    """A runner, one a node."""

    node = serializers.CharField(max_length=253)
    runtimes = serializers.ListField(child=serializers.ChoiceField(choices=RUNTIMES), required=False)
    models = serializers.ListField(child=serializers.CharField(), required=False, help_text="on its disk")
    measured = AnyObjectField(required=False, help_text="minor → memory that the driver measures")
    slots = ScenarioSlotSchema(many=True, required=False)


class ScenarioRequestSchema(serializers.Serializer[Any]):
    """An inference request."""

    id = serializers.CharField(max_length=253)
    model = serializers.CharField(max_length=253)
    lora = serializers.CharField(required=False, allow_blank=True, max_length=253)
    priority = serializers.IntegerField(required=False, help_text="higher goes first")


class SimulatedSlotSchema(serializers.Serializer[Any]):
    """A slot to start."""

    id = serializers.CharField()
    model = serializers.CharField()
    lora = serializers.CharField(allow_blank=True)
    runner = serializers.CharField()
    gpus = serializers.ListField(child=serializers.IntegerField(), help_text="minors")
    memory = serializers.ListField(child=serializers.IntegerField(), help_text="bytes on each of them")
    evicts = serializers.ListField(child=serializers.CharField(), help_text="slots that have to be gone first")


class SimulatedRequestSchema(serializers.Serializer[Any]):
    """What becomes of a request."""

    id = serializers.CharField()
    slot = serializers.CharField(allow_null=True)
    reason = serializers.CharField(allow_blank=True, help_text="why it waits")


class KeepWarmSchema(serializers.Serializer[Any]):
    """Slots that keepWarm lacks."""

    model = serializers.CharField()
    missing = serializers.IntegerField()
    reason = serializers.CharField()


class EstimateSchema(serializers.Serializer[Any]):
    """Memory of a model by its file, in bytes, for one number of GPUs."""

    total = serializers.IntegerField()
    per_gpu = serializers.ListField(child=serializers.IntegerField())
    parts = serializers.DictField(child=serializers.IntegerField())
    architecture = serializers.CharField()
    formula = serializers.CharField()
    context = serializers.IntegerField()  # type: ignore[assignment]  # the estimate's name, as Field's own
    parallel = serializers.IntegerField()
    kv_type = serializers.ChoiceField(choices=[kind.value for kind in KvType])
    notes = serializers.ListField(child=serializers.CharField())
