"""What each runtime is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pynvml
import pytest

from runner.protocol import DesiredSlot, Gpu
from runner.runtimes import CannotStart, Place, Runtime, Step, base_environment
from runner.runtimes.llamacpp import LlamaCpp
from runner.runtimes.ollama import Ollama
from runner.runtimes.simulated import PROGRAM, Simulated
from runner.runtimes.vllm import Vllm, share_percent

GIB = 2**30
TWO = [Gpu(1, "GPU-b", 36 * GIB, 80 * GIB), Gpu(3, "GPU-d", 36 * GIB, 80 * GIB)]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models as a node may have it."""
    root = tmp_path / "models"
    for name in ("tiny.gguf", "deep/er.gguf", "loras/law.gguf", "qwen/config.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (tmp_path / "secret.gguf").touch()
    (root / "out.gguf").symlink_to(tmp_path / "secret.gguf")
    return root


def place(folder: Path) -> Place:
    return Place(host="10.0.0.7", port=21_001, folder=folder, listen="0.0.0.0")


def slot(runtime: str, **fields: object) -> DesiredSlot:
    return msgspec.structs.replace(
        DesiredSlot(id="s1", run=True, model="chat", runtime=runtime, source="tiny.gguf", gpus=TWO), **fields
    )


def _no_driver() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_vllm(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-4c SLOT-6a one share on each GPU, as many GPUs as the slot has; no argument of a model changes ours."""
    monkeypatch.setattr(pynvml, "nvmlInit", _no_driver)
    asked = slot("vllm", source="org/chat-7b", args=["--port", "1", "--dtype=half"], parallel=64, context_length=4096)
    launch = Vllm("/opt/vllm", models).launch(asked, place(tmp_path))
    assert launch.command == (
        *("/opt/vllm", "serve", "org/chat-7b", "--port", "1", "--dtype=half", "--host", "0.0.0.0", "--port", "21001"),
        *("--served-model-name", "chat", "--tensor-parallel-size", "2", "--max-num-seqs", "64"),
        *("--kv-cache-dtype", "auto", "--gpu-memory-utilization", "0.45", "--max-model-len", "4096"),
    )
    # where no driver answers, minors stand for its indices
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert launch.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    launch = Vllm("/opt/vllm", models).launch(slot("vllm", source="qwen", lora="law"), place(tmp_path))
    assert launch.command[2] == str(models / "qwen")
    assert launch.command[-3:] == ("--enable-lora", "--lora-modules", "law=law")
    assert Vllm("/opt/vllm", models).sources() == ["qwen"]


@pytest.mark.parametrize("percent", [1, 29, 45, 58, 92, 100])
@pytest.mark.parametrize("size", [80 * GIB, 85_899_345_921, 24_564 * 2**20, 99])
def test_the_share_of_vllm_is_that_of_the_ledger(percent: int, size: int) -> None:
    """SLOT-6a what the ledger gives is the GPU's size × the share, rounded up to a byte; the share comes back."""
    claim = -(-size * percent // 100)
    assert share_percent(slot("vllm", gpus=[Gpu(0, "GPU-a", claim, size)])) == percent


def test_llamacpp(models: Path, tmp_path: Path) -> None:
    """SLOT-4c SLOT-6b each GPU bears its part, and a request does not interrupt another."""
    uneven = [Gpu(0, "GPU-a", 3 * GIB, 80 * GIB), Gpu(1, "GPU-b", 2 * GIB, 80 * GIB)]
    asked = slot("llamacpp", gpus=uneven, kv_type="q8_0", lora="law", args=["--seed", "1"])
    launch = LlamaCpp("/opt/python", models).launch(asked, place(tmp_path))
    assert launch.command == (
        *("/opt/python", "-m", "llama_cpp.server", "--seed", "1", "--model", str(models / "tiny.gguf")),
        *("--model_alias", "law", "--host", "0.0.0.0", "--port", "21001", "--n_ctx", "0", "--n_gpu_layers", "-1"),
        *("--interrupt_requests", "false", "--flash_attn", "true", "--type_k", "8", "--type_v", "8"),
        *("--tensor_split", str(3 * GIB), str(2 * GIB), "--lora_path", str(models / "loras" / "law.gguf")),
    )
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    launch = LlamaCpp("/opt/python", models).launch(slot("llamacpp", gpus=[]), place(tmp_path))
    assert "-1" not in launch.command
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert LlamaCpp("/opt/python", models).sources() == ["deep/er.gguf", "out.gguf", "tiny.gguf"]


def test_ollama(tmp_path: Path) -> None:
    """SLOT-4c a port and a folder of models of its own, the blobs shared; the model is loaded before it is ready."""
    store = tmp_path / "store"
    for name in ("library/qwen3/8b", "library/qwen3/latest", "someone/else/v1"):
        path = store / "manifests" / "registry.ollama.ai" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    runtime = Ollama("/opt/ollama", store)
    assert runtime.sources() == ["qwen3:8b", "qwen3:latest", "qwen3", "someone/else:v1"]
    folder = tmp_path / "slot"
    folder.mkdir()
    asked = slot("ollama", source="qwen3:8b", parallel=2, context_length=8192, kv_type="q8_0")
    launch = runtime.launch(asked, place(folder))
    assert launch.command == ("/opt/ollama", "serve")
    want = {
        "OLLAMA_HOST": "0.0.0.0:21001",
        "OLLAMA_MODELS": str(folder / "models"),
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_NOPRUNE": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-d",
    }
    assert want.items() <= launch.environment.items()
    assert (folder / "models" / "blobs").resolve() == store / "blobs"
    (folder / "models" / "manifests" / "registry.ollama.ai" / "library" / "qwen3" / "8b").unlink()
    assert "qwen3:8b" in runtime.sources()
    load = Step("/api/generate", {"model": "qwen3:8b", "keep_alive": -1, "stream": False})
    assert runtime.steps(asked) == (load,)
    pulled = runtime.steps(slot("ollama", source="new:1b"))
    assert [step.path for step in pulled] == ["/api/pull", "/api/generate"]


def test_simulated(tmp_path: Path) -> None:
    """SLOT-4c"""
    runtime = Simulated(tmp_path / "memory", ("a", "b"))
    launch = runtime.launch(slot("simulated", args=["--tokens=3"]), place(tmp_path))
    assert launch.command[:4] == (sys.executable, "-SE", str(PROGRAM), "--tokens=3")
    assert f"--gpu=GPU-b:{36 * GIB}:{80 * GIB}" in launch.command
    assert runtime.sources() == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "fields", "want"),
    [
        pytest.param("llamacpp", {"source": "../secret.gguf"}, "is not in the runner's folder", id="outside"),
        pytest.param("llamacpp", {"source": "out.gguf"}, "is not in the runner's folder", id="outside by a link"),
        pytest.param("llamacpp", {"source": "/etc/passwd"}, "is not in the runner's folder", id="another path"),
        pytest.param("llamacpp", {"source": "none.gguf"}, "is not on this machine", id="not there"),
        pytest.param("llamacpp", {"lora": "../tiny"}, "is not in the runner's", id="a model as the adapter"),
        pytest.param("llamacpp", {"lora": "../../secret"}, "is not in the runner's", id="an adapter outside"),
        pytest.param("llamacpp", {"kv_type": "q5_1"}, "does not keep keys and values as q5_1", id="kv of llama.cpp"),
        pytest.param("vllm", {"source": "--config=/x"}, "cannot be a model", id="an option as the model"),
        pytest.param("vllm", {"source": ""}, "cannot be a model", id="no model"),
        pytest.param("vllm", {"source": "../secret.gguf"}, "is not in the runner's folder", id="a path outside"),
        pytest.param("vllm", {"lora": "-x"}, "cannot be a LoRA", id="an option as the adapter"),
        pytest.param("vllm", {"kv_type": "q4_0", "source": "m"}, "not as q4_0", id="kv of vllm"),
        pytest.param("vllm", {"gpus": [Gpu(0, "GPU-a", 1, 0)], "source": "m"}, "sizes", id="sizes not known"),
        pytest.param("ollama", {"lora": "law"}, "only as a model of its own", id="an adapter for ollama"),
        pytest.param("ollama", {"args": ["--x"]}, "takes no arguments", id="arguments for ollama"),
    ],
)
def test_what_is_not_started(kind: str, fields: dict[str, object], want: str, models: Path, tmp_path: Path) -> None:
    """SLOT-4c a model can neither name a file elsewhere nor smuggle an option in."""
    runtimes: dict[str, Runtime] = {
        "llamacpp": LlamaCpp("python", models),
        "vllm": Vllm("vllm", models),
        "ollama": Ollama("ollama", tmp_path / "store"),
    }
    with pytest.raises(CannotStart, match=want):
        runtimes[kind].launch(slot(kind, **fields), place(tmp_path))


def test_a_link_to_itself(models: Path, tmp_path: Path) -> None:
    """SLOT-2 is a reason not to start, and no fault after which the slot would never end."""
    (models / "loop.gguf").symlink_to("loop.gguf")
    with pytest.raises(CannotStart, match=r"loop\.gguf is not on this machine"):
        LlamaCpp("python", models).launch(slot("llamacpp", source="loop.gguf"), place(tmp_path))


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 nothing of the runner's own reaches a runtime: neither its token nor what Python is to load."""
    monkeypatch.setenv("GPUPLANE_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/tmp/x")
    monkeypatch.setenv("HF_HOME", "/models/hf")
    found = base_environment()
    assert found["HF_HOME"] == "/models/hf"
    assert "secret" not in found.values()
    assert "PYTHONPATH" not in found
