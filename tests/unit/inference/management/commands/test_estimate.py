"""`manage.py estimate`, without a database."""

import io
import json
import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.gguf_files import F32, header, qwen3_8b


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "qwen3.gguf"
    path.write_bytes(qwen3_8b())
    return str(path)


def told(*args):
    out = io.StringIO()
    call_command("estimate", *args, stdout=out)
    return out.getvalue()


def test_json(qwen):
    """SLOT-6b the command answers total, each GPU and the parts."""
    found = json.loads(
        told(qwen, "--context", "40960", "--parallel", "2", "--kv", "q8_0", "--gpus", "1", "--format", "json")
    )
    assert found["total"] == 15_767_897_088
    assert found["per_gpu"] == [15_767_897_088]
    assert sum(found["parts"].values()) == found["total"]


def test_several_gpus(qwen):
    """SLOT-6b by number of GPUs."""
    found = json.loads(told(qwen, "--context", "4096", "--gpus", "2", "--format", "json"))
    assert len(found["per_gpu"]) == 2
    assert sum(found["per_gpu"]) == found["total"] == sum(found["parts"].values())


def test_table(qwen):
    """SLOT-6b as text; parallel is 4 where it is not said, as it is of models."""
    lines = told(qwen, "--context", "10240").splitlines()
    assert lines[0].split()[:2] == [
        "total",
        str(json.loads(told(qwen, "--context", "10240", "--format", "json"))["total"]),
    ]
    assert any(line.startswith("first block") for line in lines)
    assert json.loads(told(qwen, "--context", "10240", "--format", "json"))["parallel"] == 4


def test_the_context_of_the_file(qwen):
    """SLOT-6b without a context the file's counts, and the answer says so."""
    found = json.loads(told(qwen, "--format", "json"))
    assert found["context"] == 40_960
    assert found["notes"] == ["no context was given: 40960 tokens are counted"]


def test_a_projector_beside_it(qwen, tmp_path):
    """SLOT-6b the file of a projector is counted whole."""
    beside = tmp_path / "mmproj.gguf"
    beside.write_bytes(header({"general.architecture": "clip"}, [("v.a.weight", (100,), F32)]))
    found = json.loads(told(qwen, "--context", "1", "--mmproj", str(beside), "--format", "json"))
    assert found["parts"]["projectors"] == 400


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(b"", "ends in the middle", id="empty"),
        pytest.param(b"{}", "ends in the middle", id="short"),
        pytest.param(b"\x7fELF" + b"\0" * 80, "not a GGUF file", id="another format"),
        pytest.param(b"GGUF\3\0\0\0" + b"\xff" * 16, "at most 32768 are read", id="hostile counts"),
        pytest.param(header({"general.architecture": "llama"}), "does not say its llama.block_count", id="too little"),
    ],
)
def test_bad_files(tmp_path, raw, want):
    """SLOT-6b one sentence that names the file, and exit code 2."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(CommandError, match=want) as caught:
        told(str(path))
    assert caught.value.returncode == 2
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).count(str(path)) == 1


def test_a_truncated_header(tmp_path, qwen):
    """SLOT-6b the first hundred kilobytes of a header are not enough."""
    path = tmp_path / "cut.gguf"
    with Path(qwen).open("rb") as whole:
        path.write_bytes(whole.read(100_000))
    with pytest.raises(CommandError, match=r"ends in the middle of value tokenizer\.ggml\.tokens") as caught:
        told(str(path))
    assert caught.value.returncode == 2


def test_what_is_no_file(tmp_path):
    """SLOT-6b neither a folder, nor a pipe that would never end, nor nothing."""
    os.mkfifo(tmp_path / "pipe")
    for name, want in (("", "not a file"), ("pipe", "not a file"), ("none.gguf", "no such file")):
        with pytest.raises(CommandError, match=want) as caught:
            told(str(tmp_path / name))
        assert caught.value.returncode == 2


@pytest.mark.parametrize("args", [["--context", "0"], ["--gpus", "-1"], ["--parallel", "many"], ["--kv", "q2"]])
def test_bad_arguments(qwen, args):
    """SLOT-6b what cannot be meant is refused."""
    with pytest.raises(CommandError):
        told(qwen, *args)
