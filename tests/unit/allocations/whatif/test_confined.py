"""The process of a what-if run: what it answers, and that it ends whatever happens."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from access.clients import Client
from access.errors import BadInput, TooCostly, TookTooLong, TooLarge, Unavailable
from allocations.scenario import read_scenario, run_scenario
from allocations.scenario.digest import Digest
from allocations.whatif import confined
from allocations.whatif.confined import Confinement, answer_to
from allocations.whatif.program import Task

ROOT = Path(__file__).resolve().parents[4]
SCENARIO = (ROOT / "tests/scenarios/kai-416.yaml").read_bytes()
RESULT = Task(kind="either", form="result")
LONG = Confinement(deadline_seconds=120)


def ask(text, task=RESULT, confinement=LONG, client=None):
    return answer_to(task, text, confinement=confinement, client=client or Client())


@pytest.fixture
def processes(monkeypatch):
    """Those that were started, each once it has been."""
    started, real = [], subprocess.Popen

    def start(*args, **kwargs):
        process = real(*args, **kwargs)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def playing(script):
    """A confinement whose program is another."""
    return Confinement(deadline_seconds=120, program=(sys.executable, "-c", script))


def test_it_answers_what_the_command_answers(processes):
    """VIEW-4 the same decisions as without a process of its own, byte for byte."""
    assert ask(SCENARIO) == msgspec.json.encode(run_scenario(read_scenario(SCENARIO)))
    assert [process.returncode is None for process in processes] == [False]


def test_a_digest_for_the_page():
    """VIEW-4 counts, and no more than a person reads."""
    gpus = [{"minor": minor, "uuid": f"GPU-{minor}", "model": "H100", "memory": "80Gi"} for minor in range(100)]
    text = {
        "nodes": [{"name": "n1", "devices": gpus}, *({"name": f"m{number}"} for number in range(300))],
        "pods": [
            {
                "metadata": {"name": "much"},
                "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "90"}}}]},
            },
            *({"metadata": {"name": f"none-{number}"}} for number in range(600)),
        ],
    }
    told = msgspec.json.decode(ask(json.dumps(text).encode(), Task("either", "digest")), type=Digest)
    assert (told.placed, told.refused, told.nodes) == (1, 600, 301)
    assert (len(told.decisions), told.more_decisions) == (500, 101)
    assert (len(told.decisions[0].devices), told.decisions[0].more_devices) == (32, 58)
    assert told.decisions[0].reasons == (("no gpu devices", 300),)
    assert (len(told.fleet), told.more_nodes) == (200, 101)
    assert all(len(node.devices) <= 32 for node in told.fleet)


@pytest.mark.parametrize(
    ("text", "kind", "want"),
    [
        pytest.param(b"nodes: 3", "yaml", ("nodes", "type"), id="a rule is broken"),
        pytest.param(b"nodes: []", "json", ("", "syntax"), id="YAML where JSON was said"),
        pytest.param(b"[" * 100_000, "json", ("", "syntax"), id="deep and cut off"),
        pytest.param(
            b'{"pods":[' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]}",
            "json",
            ("", "syntax"),
            id="deep in a pod",
        ),
        pytest.param(b'{"\xed\xa0\x80": 1}', "json", ("", "encoding"), id="half a surrogate"),
        pytest.param(b'{"a\\u0000": 1}', "json", ("a\x00", "unknown-field"), id="a NUL"),
    ],
)
def test_a_broken_rule_is_reported_with_its_field(text, kind, want, processes):
    with pytest.raises(BadInput) as caught:
        ask(text, Task(kind=kind, form="result"))
    assert (caught.value.field, caught.value.rule) == want
    assert processes[0].returncode is not None


def test_a_scenario_for_a_page_is_a_small_one():
    text = json.dumps({"nodes": [{"name": f"n{number}"} for number in range(2_001)]}).encode()
    with pytest.raises(TooLarge):
        ask(text, Task("either", "digest"))
    assert len(json.loads(ask(text))["fleet"]) == 2_001


def test_its_deadline_ends_it(processes):
    """VIEW-4 a run that goes on and on is ended, not left behind."""
    with pytest.raises(TookTooLong):
        ask(b"", confinement=msgspec.structs.replace(playing("while True: pass"), deadline_seconds=0.2))
    assert processes[0].returncode == -signal.SIGKILL


def test_a_program_that_reads_nothing_is_ended_too(processes):
    with pytest.raises(TookTooLong):
        ask(b"x" * (4 << 20), confinement=msgspec.structs.replace(playing("while True: pass"), deadline_seconds=0.2))
    assert processes[0].returncode == -signal.SIGKILL


def test_its_cpu_seconds_end_it_whoever_watches(processes):
    many = [
        {
            "metadata": {"name": f"p{number}"},
            "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        }
        for number in range(20_000)
    ]
    text = json.dumps({"nodes": [{"name": f"n{number}"} for number in range(900)], "pods": many}).encode()
    endless = Confinement(deadline_seconds=250, cpu_seconds=1, memory_bytes=4 << 30)
    with pytest.raises(TookTooLong):
        ask(text, confinement=endless)
    assert processes[0].returncode == -signal.SIGXCPU


def test_its_memory_is_bounded(processes):
    """VIEW-4 what does not fit is told, and the web process has none of it."""
    text = b"pods:\n" + b"".join(b"- {metadata: {name: p%d}}\n" % number for number in range(50_000))
    with pytest.raises(TooCostly, match="24 MiB of memory") as caught:
        ask(text, confinement=Confinement(deadline_seconds=250, cpu_seconds=200, memory_bytes=24 << 20))
    assert caught.value.rule == "memory"
    assert processes[0].returncode is not None


def test_its_answer_is_bounded():
    with pytest.raises(TooCostly) as caught:
        ask(SCENARIO, confinement=Confinement(deadline_seconds=120, answer_bytes=100))
    assert caught.value.rule == "answer"


def test_one_that_writes_without_end_is_ended(processes):
    with pytest.raises(TooCostly) as caught:
        ask(b"", confinement=playing("import sys\nwhile True: sys.stdout.write('x' * 65536)"))
    assert caught.value.rule == "answer"
    assert processes[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "want"),
    [
        pytest.param("import os; os.kill(os.getpid(), 9)", TooCostly, id="killed by the kernel"),
        pytest.param("import os; os.abort()", TooCostly, id="aborted by a library"),
        pytest.param("import sys; sys.stdin.read(); sys.exit(3)", RuntimeError, id="a fault of ours"),
        pytest.param('print(\'{"status":"fault","detail":"boom"}\')', RuntimeError, id="a fault that is told"),
        pytest.param('print(\'{"status":"ok","size":9}\'); print(\'half\')', RuntimeError, id="half an answer"),
    ],
)
def test_one_that_dies_is_no_answer(script, want, processes):
    with pytest.raises(want):
        ask(SCENARIO, confinement=playing(script))
    assert processes[0].returncode is not None


def test_it_ends_when_its_client_leaves(processes):
    """VIEW-4 nobody waits, so nothing runs."""
    client, outcome = Client(), []

    def run():
        with pytest.raises(Unavailable) as caught:
            ask(b"", confinement=playing("import sys; sys.stdin.read()\nwhile True: pass"), client=client)
        outcome.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    client.disconnect()
    thread.join(60)
    assert len(outcome) == 1
    assert processes[0].returncode == -signal.SIGKILL
    assert client._callbacks == []


def test_one_whose_client_has_left_before_it_began(processes):
    client = Client()
    client.disconnect()
    with pytest.raises(Unavailable):
        ask(b"", confinement=playing("while True: pass"), client=client)
    assert processes[0].returncode == -signal.SIGKILL


def test_nothing_of_the_web_process_is_passed_on(monkeypatch):
    monkeypatch.setenv("GPUPLANE_SECRET_KEY", "secret")
    monkeypatch.setenv("GPUPLANE_DATABASE_URL", "postgres://user:secret@db/x")
    told = ask(
        b"",
        confinement=playing(
            "import json, os\n"
            "body = json.dumps([sorted(os.environ), sorted(os.listdir('/proc/self/fd'))])\n"
            "print(json.dumps({'status': 'ok', 'size': len(body)})); print(body, end='')"
        ),
    )
    names, files = json.loads(told)
    assert set(names) <= {*confined.ENVIRONMENT, "OPENBLAS_NUM_THREADS", "LC_ALL"}
    assert len(files) == 4, "input, output, errors, and the listing itself"


def test_the_program_needs_no_django():
    code = (
        "import sys\nfrom allocations.whatif import program\nprogram._answerer()\n"
        "sys.exit(any(name in sys.modules for name in ('django', 'redis', 'kubernetes', 'asyncio')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


PARENT = """
import sys
from access.clients import Client
from allocations.whatif import confined, program
real = confined.subprocess.Popen
def start(*args, **kwargs):
    process = real(*args, **kwargs)
    print(process.pid, flush=True)
    return process
confined.subprocess.Popen = start
text = b"pods:\\n" + b"".join(b"- {metadata: {name: p%d}}\\n" % number for number in range(400_000))
confined.answer_to(
    program.Task(kind="yaml", form="result"), text,
    confinement=confined.Confinement(deadline_seconds=250, cpu_seconds=200, memory_bytes=4 << 30), client=Client(),
)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG, which Linux alone has")
def test_it_dies_with_its_parent():
    """VIEW-4 a SIGKILL of the web process leaves no run behind."""
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    import select

    ended, _, _ = select.select([descriptor], [], [], 120)  # readable when it has ended
    os.close(descriptor)
    assert ended
