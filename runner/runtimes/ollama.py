"""`ollama serve`: one process a slot, with a port and a folder of models of its own.

The folder has the slot's own manifests and shares the blobs of the runner's store. Invariants: what a slot names or
pulls changes nobody else's models; a slot is ready when its model is loaded, and it keeps it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.protocol import DesiredSlot
from runner.runtimes import CannotStart, Launch, Place, Step, base_environment, devices, joined

KV_TYPES: Final = frozenset({"f16", "q8_0", "q4_0"})
FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True)
class Ollama:
    """`program`: the path of `ollama`; `store`: a folder of models as `OLLAMA_MODELS` names one."""

    program: str
    store: Path | None = None
    name: str = "ollama"
    health: str = "/api/version"

    def sources(self) -> list[str]:
        """Tags in the store, as `ollama list` writes them."""
        if self.store is None:
            return []
        found = []
        for path in sorted((self.store / "manifests").glob("*/*/*/*")):
            _, namespace, model, tag = path.parts[-4:]
            name = f"{model}:{tag}" if namespace == "library" else f"{namespace}/{model}:{tag}"
            found += [name, name.removesuffix(":latest")] if tag == "latest" else [name]
        return found

    def steps(self, slot: DesiredSlot) -> tuple[Step, ...]:
        """Pull what is not there, and load it."""
        pull = Step("/api/pull", {"model": slot.source, "stream": False})
        load = Step("/api/generate", {"model": slot.source, "keep_alive": FOR_EVER, "stream": False})
        return (load,) if slot.source in self.sources() else (pull, load)

    def launch(self, slot: DesiredSlot, place: Place) -> Launch:
        """By its environment: it takes no arguments."""
        if slot.lora:
            raise CannotStart("ollama serves a LoRA only as a model of its own, made with ADAPTER")
        if slot.args:
            raise CannotStart("`ollama serve` takes no arguments")
        if slot.kv_type not in KV_TYPES:
            raise CannotStart(f"ollama does not keep keys and values as {slot.kv_type}")
        own = place.folder / "models"
        self._make(own)
        settings = {
            "OLLAMA_HOST": joined(place.listen, place.port),
            "OLLAMA_MODELS": str(own),
            "OLLAMA_NOPRUNE": "1",
            "OLLAMA_NUM_PARALLEL": str(slot.parallel),
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_KEEP_ALIVE": str(FOR_EVER),
            "OLLAMA_KV_CACHE_TYPE": slot.kv_type,
            "OLLAMA_SCHED_SPREAD": "1" if len(slot.gpus) > 1 else "0",
        }
        if slot.kv_type != "f16":
            settings["OLLAMA_FLASH_ATTENTION"] = "1"
        if slot.context_length:
            settings["OLLAMA_CONTEXT_LENGTH"] = str(slot.context_length)
        return Launch(command=(self.program, "serve"), environment=base_environment() | devices(slot) | settings)

    def _make(self, own: Path) -> None:
        """Make the slot's folder of models. Raises OSError."""
        own.mkdir()
        if self.store is None:
            return
        (self.store / "blobs").mkdir(parents=True, exist_ok=True)
        (own / "blobs").symlink_to((self.store / "blobs").resolve())
        if (self.store / "manifests").is_dir():
            shutil.copytree(self.store / "manifests", own / "manifests")
