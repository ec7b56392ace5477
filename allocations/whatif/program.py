"""What runs in a what-if's own process: reads a scenario from standard input, runs it, writes the answer.

Started by `allocations.whatif.confined` as `python -m allocations.whatif.program PARENT CPU_SECONDS MEMORY_BYTES
ANSWER_BYTES`. Input is a line of JSON (`Task`) and then the scenario's text; output is a line of JSON (`RunOutcome`)
and then, where that says so, the answer's bytes. Invariants:

- The kernel ends the process with the thread that started it, also when the web process is killed by SIGKILL.
- Its CPU seconds are limited, and its memory beyond that of the program itself.
- It has the lowest priority of the machine, and is the first to be killed where that runs out of memory.
- No Django, no database, no settings: there is nothing here for a hostile text to reach.

Imports that take time come after the process is tied to its parent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG: Final = 1
NICENESS: Final = 19
OOM_SCORE_MOST: Final = 1000
"""`oom_score_adj` of the process to kill before any other."""


class Task(msgspec.Struct):
    """`kind`: json, yaml, or either; `form`: result, as REST answers, or digest, for the page."""

    kind: str
    form: str


class RunOutcome(msgspec.Struct, omit_defaults=True):
    """`status`: ok, and `size` bytes follow; refused (`detail`, `field`, `rule`, `too_large`); memory; answer (too
    long); fault.
    """

    status: str
    size: int = 0
    detail: str = ""
    field: str = ""
    rule: str = ""
    too_large: bool = False


def main() -> None:
    """Answer one request."""
    parent, cpu_seconds, memory_bytes, answer_bytes = map(int, sys.argv[1:])
    os.nice(NICENESS)  # before the imports: they are most of a small run
    _tie(parent)
    answer = _answerer()
    _confine(cpu_seconds, memory_bytes)
    line, _, text = sys.stdin.buffer.read().partition(b"\n")
    outcome, body = _tried(lambda: answer(msgspec.json.decode(line, type=Task), text))
    if len(body) > answer_bytes:
        outcome, body = RunOutcome("answer", size=len(body)), b""
    out = sys.stdout.buffer
    out.write(msgspec.json.encode(outcome) + b"\n")
    out.write(body)
    out.flush()
    os._exit(0)  # without cleaning up, which takes time


def _tie(parent: int) -> None:
    """Have the kernel end this process with the thread that started it; exit where that is gone already."""
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _confine(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit this process, now that the program itself is loaded."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # /proc may be read-only
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_MOST))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answerer() -> Callable[[Task, bytes], tuple[RunOutcome, bytes]]:
    """The function that answers, with everything it needs imported."""
    from allocations.scenario import parse_scenario, run_scenario
    from allocations.scenario.digest import digest_of
    from allocations.scenario.parse import LIMITS, PAGE_LIMITS
    from allocations.scenario.text import read_json, read_text, read_yaml

    readers = {"json": read_json, "yaml": read_yaml, "either": read_text}

    def answer(task: Task, text: bytes) -> tuple[RunOutcome, bytes]:
        scenario = parse_scenario(readers[task.kind](text), limits=LIMITS if task.form == "result" else PAGE_LIMITS)
        result = run_scenario(scenario)
        body = msgspec.json.encode(result if task.form == "result" else digest_of(result))
        return RunOutcome("ok", size=len(body)), body

    return answer


def _tried(answer: Callable[[], tuple[RunOutcome, bytes]]) -> tuple[RunOutcome, bytes]:
    """The answer, or what went wrong."""
    from access.errors import BadInput, TooLarge

    try:
        return answer()
    except BadInput as error:
        return RunOutcome(
            "refused",
            detail=_encodable(str(error)),
            field=_encodable(error.field),
            rule=error.rule,
            too_large=isinstance(error, TooLarge),
        ), b""
    except RecursionError:
        return RunOutcome("refused", detail="the scenario is nested too deeply", rule="syntax"), b""
    except MemoryError:
        return RunOutcome("memory"), b""
    except Exception:  # noqa: BLE001 - the parent logs it
        import traceback

        return RunOutcome("fault", detail=_encodable(traceback.format_exc()[-4000:])), b""


def _encodable(text: str) -> str:
    """The text without half surrogates."""
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main()
