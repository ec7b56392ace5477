"""What-if over REST and on the page: how many run, how long, and what is said of those that are refused."""

import json
import sys

import msgspec
import pytest
import yaml
from django.test import Client as Browser

from allocations.whatif import run
from allocations.whatif.confined import Confinement
from allocations.whatif.run_slots import RETRY_SECONDS, RUN_SLOTS, RUNS_MOST

SCENARIO = {"nodes": [{"name": "n1", "devices": [{"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}]}]}


def ways(api):
    """The same scenario by REST and by the page: (status, text, headers) of each."""
    answer = api.send("POST", "simulations/", SCENARIO)
    yield answer.status_code, answer.json().get("detail", ""), answer.headers
    browser = Browser()
    browser.force_login(api.user)
    page = browser.post("/simulate/", {"scenario": json.dumps(SCENARIO)})
    yield page.status_code, page.content.decode(), page.headers


def test_a_second_run_of_the_same_user_is_refused(operator, viewer):
    """VIEW-4 one run a user, whichever way they come; others are served meanwhile."""
    with RUN_SLOTS.taken(operator.user.pk):
        for status, text, headers in ways(operator):
            assert status == 429
            assert "a what-if run of yours is still under way" in text
            assert headers["Retry-After"] == str(RETRY_SECONDS)
        assert [status for status, _, _ in ways(viewer)] == [200, 200]
    assert [status for status, _, _ in ways(operator)] == [200, 200]


def test_the_fifth_run_is_refused(operator):
    """VIEW-4 four runs in all."""
    turns = [RUN_SLOTS.taken(-number) for number in range(1, RUNS_MOST + 1)]
    for turn in turns:
        turn.__enter__()
    try:
        for status, text, _ in ways(operator):
            assert status == 503
            assert "4 what-if runs are under way" in text
    finally:
        for turn in turns:
            turn.__exit__(None, None, None)
    assert RUN_SLOTS.running == 0


@pytest.mark.parametrize(
    ("confinement", "want", "words"),
    [
        pytest.param(
            Confinement(deadline_seconds=0.2, program=(sys.executable, "-c", "while True: pass")),
            504,
            "within 0.2 seconds",
            id="too long",
        ),
        pytest.param(
            Confinement(program=(sys.executable, "-c", 'print(\'{"status":"memory"}\')')),
            422,
            "256 MiB of memory",
            id="too much",
        ),
        pytest.param(Confinement(answer_bytes=10), 422, "make the scenario smaller", id="an answer too long"),
    ],
)
def test_a_run_that_is_ended_says_so(operator, monkeypatch, confinement, want, words):
    """VIEW-4 deadline, memory and size of the answer are told in words, and the turn is free again."""
    monkeypatch.setattr(run, "CONFINEMENT", msgspec.structs.replace(confinement))
    for status, text, _ in ways(operator):
        assert status == want
        assert words in text
    assert RUN_SLOTS.running == 0


def test_the_document_states_the_limits(operator):
    document = yaml.load(operator.send("GET", "/api/schema/").content, Loader=yaml.CSafeLoader)
    answers = document["paths"]["/api/v1/simulations/"]["post"]["responses"]
    assert {"200", "422", "429", "503", "504"} <= set(answers)
    other = document["paths"]["/api/v1/claims/"]["post"]["responses"]
    assert "504" not in other


def test_slots_over_rest(operator):
    """SLOT-7, VIEW-4 slots, requests and the fleet as it will be; a model's file is not read, whatever it names."""
    body = {
        **SCENARIO,
        "models": [
            {"name": "m", "runtime": "ollama", "memory": "30Gi"},
            {"name": "file", "runtime": "ollama", "gguf": "/etc/passwd"},
        ],
        "runners": [{"node": "n1", "runtimes": ["ollama"], "measured": {"0": "20Gi"}}],
        "requests": [{"id": "r1", "model": "m"}, {"id": "r2", "model": "file"}],
    }
    answer = operator.send("POST", "simulations/", body).json()
    assert answer["slots"] == [
        {"id": "new-1", "model": "m", "lora": "", "runner": "n1", "gpus": [0], "memory": [30 << 30], "evicts": []}
    ]
    why = "the memory of model file is not known: /etc/passwd is a file, which only manage.py simulate reads"
    assert answer["requests"] == [
        {"id": "r1", "slot": "new-1", "reason": ""},
        {"id": "r2", "slot": None, "reason": why},
    ]
    assert answer["fleet"] == {"n1": [{"uuid": "GPU-0", "core_used": 0, "memory_used": 30 << 30}]}
