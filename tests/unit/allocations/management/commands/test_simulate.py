"""`manage.py simulate`, without a database."""

import io
import json
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.gguf_files import header

SCENARIOS = Path(__file__).resolve().parents[4] / "scenarios"


def simulate(*args):
    out = io.StringIO()
    call_command("simulate", *args, stdout=out)
    return out.getvalue()


def test_json():
    """VIEW-4 the command answers with the contract's JSON."""
    result = json.loads(simulate(str(SCENARIOS / "kai-2153.yaml"), "--format", "json"))
    assert set(result) == {"decisions", "fleet"}
    assert len(result["decisions"]) == 16


def test_table():
    told = simulate(str(SCENARIOS / "adoption.yaml"), "--format", "table")
    assert "team/newer  -" in told
    assert "4 of 5 devices are used" in told
    assert "problem: default/unreadable" in told


def test_files_of_models(tmp_path, monkeypatch):
    """SLOT-6b the command reads the files that models name: beside the scenario, or in the working directory."""
    model = header(
        {
            "general.architecture": "llama",
            "llama.block_count": 1,
            "llama.embedding_length": 8,
            "llama.attention.head_count": 2,
        },
        [("blk.0.a.weight", (1 << 28,), 0)],
    )
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "one.gguf").write_bytes(model)
    (tmp_path / "two.gguf").write_bytes(model)
    monkeypatch.chdir(tmp_path)
    models = [{"name": name, "runtime": "ollama", "gguf": f"{name}.gguf"} for name in ("one", "two", "none")]
    scenario = {
        "nodes": [{"name": "n1", "devices": [{"minor": 0, "uuid": "G", "model": "H100", "memory": "80Gi"}]}],
        "models": models,
        "runners": [{"node": "n1", "runtimes": ["ollama"]}],
        "requests": [{"id": one["name"], "model": one["name"]} for one in models],
    }
    file = tmp_path / "beside" / "scenario.json"
    file.write_text(json.dumps(scenario))
    result = json.loads(simulate(str(file), "--format", "json"))
    assert {one["id"]: one["slot"] for one in result["requests"]} == {"one": "new-1", "two": "new-2", "none": None}
    assert "there is no such file" in result["requests"][2]["reason"]
    assert set(result["estimates"]) == {"one", "two"}
    lines = [line.split()[:2] for line in simulate(str(file)).splitlines()]
    assert ["one", "1"] in lines


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nodes: []")))
    assert json.loads(simulate("-", "--format", "json")) == {"decisions": [], "fleet": {}}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("nodes: 3", "nodes must be a list", id="wrong type"),
        pytest.param("nodes: [", "not YAML", id="not YAML"),
        pytest.param("nodes: [{name: A}]", "nodes\\[0\\].name must be", id="bad name"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, text, want):
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    with pytest.raises(CommandError, match=want) as caught:
        simulate(str(file))
    assert caught.value.returncode == 1


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CommandError, match="No such file"):
        simulate(str(tmp_path / "none.yaml"))
