"""What a runner or a pod starts for a slot: the model's settings at the time of planning, stored with the slot.

A later change of the model does not alter what runs in the memory that was claimed for the earlier settings.
"""

from __future__ import annotations

import msgspec

from inference.choices import KvKind, ModelRuntime
from inference.models import Model


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """`context_length`: 0: what the model says; `memory` and `gpus` are the slot's own."""

    runtime: str
    source: str = ""
    parallel: int = 4
    context_length: int = 0
    kv_type: str = KvKind.F16.value
    args: tuple[str, ...] = ()
    image: str = ""

    @classmethod
    def of(cls, model: Model) -> Launch:
        """As the model says now."""
        return cls(
            runtime=ModelRuntime(model.runtime).value,
            source=model.source or model.name,
            parallel=model.parallel,
            context_length=model.context_length,
            kv_type=KvKind(model.kv_type).value,
            args=tuple(str(one) for one in model.args),
            image=model.image,
        )
