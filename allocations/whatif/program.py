"""What runs in a what-if's own process: reads a scenario from standard input, runs it, writes the answer.

Started by `allocations.whatif.confined` as `python -m allocations.whatif.program PARENT CPU_SECONDS MEMORY_BYTES ANSWER_BYTES`. Input is a line of
JSON (`Task`) and then the scenario's text; output is a line of JSON (`Told`) and then, where that says so, the answer's bytes. Invariants:

- The kernel ends the process with the thread that started it, a SIGKILL of the web process included.
- It takes no more than its CPU seconds, and no more memory than its bytes beside what the program itself has; running out of memory is told.
- It gives way to every other process of the machine, and is the first that goes where the machine runs out of memory.
- No Django, no database, no settings: whatever is in the text, there is nothing here to get at.

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
FIRST_TO_GO: Final = 1000
"""`oom_score_adj` of a process that the kernel should take before any other."""


class Task(msgspec.Struct):
    """What to do with the text. `kind`: json, yaml, or either; `form`: result, as REST answers, or digest, for the page."""

    kind: str
    form: str
    small: bool


class Told(msgspec.Struct, omit_defaults=True):
    """How it went: `ok`, then `size` bytes follow; `refused` (`detail`, `field`, `rule`, `too_large`); `memory`; `answer` (too long); `fault`."""

    status: str
    size: int = 0
    detail: str = ""
    field: str = ""
    rule: str = ""
    too_large: bool = False


def main() -> None:
    """Tie, confine, answer, end."""
    parent, cpu_seconds, memory_bytes, answer_bytes = map(int, sys.argv[1:])
    os.nice(NICENESS)  # before the imports: they are most of a small run
    _tie(parent)
    answer = _answerer()
    _confine(cpu_seconds, memory_bytes)
    line, _, text = sys.stdin.buffer.read().partition(b"\n")
    told, body = _tried(lambda: answer(msgspec.json.decode(line, type=Task), text))
    if len(body) > answer_bytes:
        told, body = Told("answer", size=len(body)), b""
    out = sys.stdout.buffer
    out.write(msgspec.json.encode(told) + b"\n")
    out.write(body)
    out.flush()
    os._exit(0)  # the parent has its answer; tidying up would only take time


def _tie(parent: int) -> None:
    """End with the thread that started this. A parent that died before it was asked for is noticed."""
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _confine(cpu_seconds: int, memory_bytes: int) -> None:
    """Limits of this process, now that the program itself is loaded."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # where /proc is read-only the kernel chooses by itself
            Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answerer() -> Callable[[Task, bytes], tuple[Told, bytes]]:
    """The function that answers, everything it needs imported."""
    from allocations.scenario import Limits, parse_scenario, run_scenario
    from allocations.scenario.digest import digest_of
    from allocations.scenario.parse import PAGE_LIMITS
    from allocations.scenario.text import read_json, read_text, read_yaml

    readers = {"json": read_json, "yaml": read_yaml, "either": read_text}

    def answer(task: Task, text: bytes) -> tuple[Told, bytes]:
        scenario = parse_scenario(readers[task.kind](text), limits=PAGE_LIMITS if task.small else Limits())
        result = run_scenario(scenario)
        body = msgspec.json.encode(result if task.form == "result" else digest_of(result))
        return Told("ok", size=len(body)), body

    return answer


def _tried(answer: Callable[[], tuple[Told, bytes]]) -> tuple[Told, bytes]:
    """The answer, or what was wrong in its place."""
    from access.errors import BadInput, TooLarge

    try:
        return answer()
    except BadInput as error:
        return Told(
            "refused",
            detail=_sayable(str(error)),
            field=_sayable(error.field),
            rule=error.rule,
            too_large=isinstance(error, TooLarge),
        ), b""
    except RecursionError:
        return Told("refused", detail="the scenario is nested too deeply", rule="syntax"), b""
    except MemoryError:
        return Told("memory"), b""
    except Exception:  # noqa: BLE001 - told to the parent, which logs it
        import traceback

        return Told("fault", detail=_sayable(traceback.format_exc()[-4000:])), b""


def _sayable(text: str) -> str:
    """The text without half surrogates, which no encoder takes."""
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main()
