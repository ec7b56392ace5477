"""`python -m llama_cpp.server`, of the package llama-cpp-python.

Invariants: a request never interrupts the one before, which is what this server does by default; each GPU gets the
part of the model that the ledger gave its memory for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.protocol import DesiredSlot
from runner.runtimes import CannotStart, Launch, Place, Step, base_environment, devices, file_within

KV_TYPES: Final = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""Numbers of ggml's types."""
ADAPTERS: Final = "loras"
"""Folder of adapters within that of models."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """`python`: an interpreter that has the package; `models`: the folder of GGUF files."""

    python: str
    models: Path | None
    name: str = "llamacpp"
    health: str = "/openapi.json"
    """The list of models waits for the request that runs; this does not. It listens once the model is loaded."""

    def sources(self) -> list[str]:
        """GGUF files, by their path in the folder."""
        if self.models is None:
            return []
        found = (path.relative_to(self.models) for path in self.models.glob("**/*.gguf"))
        return sorted(str(path) for path in found if path.parts[0] != ADAPTERS)

    def steps(self, slot: DesiredSlot) -> tuple[Step, ...]:
        """None."""
        del slot
        return ()

    def launch(self, slot: DesiredSlot, place: Place) -> Launch:
        """By its arguments; a model's own come first, so that none of ours is changed by them."""
        if slot.kv_type not in KV_TYPES:
            raise CannotStart(f"llama.cpp does not keep keys and values as {slot.kv_type}")
        model = file_within(self.models, slot.source, what="model")
        arguments = [
            *slot.args,
            *("--model", str(model), "--model_alias", slot.lora or slot.model),
            *("--host", place.listen, "--port", str(place.port)),
            *("--n_ctx", str(slot.context_length)),
            *("--n_gpu_layers", "-1" if slot.gpus else "0"),
            *("--interrupt_requests", "false"),
        ]
        if slot.kv_type != "f16":
            number = str(KV_TYPES[slot.kv_type])
            arguments += ["--flash_attn", "true", "--type_k", number, "--type_v", number]
        if len(slot.gpus) > 1:
            arguments += ["--tensor_split", *(str(gpu.memory) for gpu in slot.gpus)]
        if slot.lora:
            arguments += ["--lora_path", str(self._adapter(slot.lora))]
        return Launch(
            command=(self.python, "-m", "llama_cpp.server", *arguments),
            environment=base_environment() | devices(slot),
        )

    def _adapter(self, lora: str) -> Path:
        folder = None if self.models is None else self.models / ADAPTERS
        return file_within(folder, lora if lora.endswith(".gguf") else f"{lora}.gguf", what="LoRA")
