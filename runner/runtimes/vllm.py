"""`vllm serve`. Invariants: it takes the share of each GPU that the ledger gave, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.protocol import DesiredSlot
from runner.runtimes import CannotStart, Launch, Place, Step, base_environment, devices, file_within, no_option

KV_TYPES: Final = {"f16": "auto", "q8_0": "fp8"}


@dataclass(frozen=True, slots=True)
class Vllm:
    """`program`: the path of `vllm`; `models`: a folder that sources may be in, which are else names of a hub."""

    program: str
    models: Path | None = None
    name: str = "vllm"
    health: str = "/health"

    def sources(self) -> list[str]:
        """Folders of models that have a configuration."""
        if self.models is None:
            return []
        found = [path.parent for path in self.models.glob("**/config.json")]
        return [str(path.relative_to(self.models)) for path in sorted(found)]

    def steps(self, slot: DesiredSlot) -> tuple[Step, ...]:
        """None."""
        del slot
        return ()

    def launch(self, slot: DesiredSlot, place: Place) -> Launch:
        """By its arguments; a model's own come first, so that none of ours is changed by them."""
        if slot.kv_type not in KV_TYPES:
            raise CannotStart(f"vllm keeps keys and values as {' or '.join(KV_TYPES)}, not as {slot.kv_type}")
        arguments = [
            *slot.args,
            *("--host", place.listen, "--port", str(place.port)),
            *("--served-model-name", slot.model),
            *("--tensor-parallel-size", str(max(len(slot.gpus), 1))),
            *("--max-num-seqs", str(slot.parallel)),
            *("--kv-cache-dtype", KV_TYPES[slot.kv_type]),
        ]
        if slot.gpus:
            arguments += ["--gpu-memory-utilization", f"{share_percent(slot) / 100:.2f}"]
        if slot.context_length:
            arguments += ["--max-model-len", str(slot.context_length)]
        if slot.lora:
            arguments += ["--enable-lora", "--lora-modules", f"{slot.lora}={self._found(slot.lora, what='LoRA')}"]
        source = self._found(slot.source, what="model")
        return Launch(
            command=(self.program, "serve", source, *arguments),
            # vLLM reads indices alone in this variable
            environment=base_environment() | devices(slot, by_index=True),
        )

    def _found(self, name: str, *, what: str) -> str:
        """A folder of the runner's, or a name that vLLM looks up itself."""
        no_option(name, what=what)
        if name.startswith(("/", ".")) or (self.models is not None and (self.models / name).exists()):
            return str(file_within(self.models, name, what=what))
        return name


def share_percent(slot: DesiredSlot) -> int:
    """The share of a GPU in percent. What the ledger gave is the GPU's size × this, rounded up to a byte."""
    shares = [gpu.memory * 100 // gpu.size for gpu in slot.gpus if gpu.size]
    if not shares:
        raise CannotStart("the sizes of the slot's GPUs are not known")
    return max(1, min(*shares, 100))
