"""Where gpuplane's web process spends its time, in two ways; both slow it, so a profiled run gives no figures.

Used by `tests.bench.cluster.web`. `Waits` looks at every thread each few milliseconds and tells what requests wait for:
wall time by function. The thread that looks runs when another lets go of the interpreter, so of CPU time it can only
tell how much each group of threads used. `Calls` counts the handlers' CPU time by function, call by call; small
functions weigh more there than they do.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from gpuplane.listeners import threads

EVERY_SECONDS = 0.005
SHOWN = 40
WITHIN = "_tidied"
"""The function that every request to the database runs in (gpuplane/listeners/threads.py)."""


class Waits:
    """Looks until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cpu_at: dict[int, float] = {}
        self._wall: dict[CodeType, float] = defaultdict(float)
        self._leaves: dict[CodeType, float] = defaultdict(float)
        self._threads: dict[str, float] = defaultdict(float)
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def begin(self) -> None:
        """Forget what was seen so far."""
        with self._lock:
            self._wall.clear()
            self._leaves.clear()
            self._threads.clear()

    def lines(self) -> list[str]:
        """CPU time by group of threads, then functions by the wall time of requests in them; milliseconds."""
        with self._lock:
            ordered = sorted(self._threads.items(), key=lambda item: -item[1])
            told = ["CPU by threads: " + ", ".join(f"{name} {spent * 1e3:.0f} ms" for name, spent in ordered[:8])]
            for title, by in (("requests wait in", self._leaves), ("requests are in, with what it calls", self._wall)):
                told += [f"-- {title}", *_listed(by)]
            return told

    def _run(self) -> None:
        me = threading.get_ident()
        pause = threading.Event()
        last = time.perf_counter()
        while not pause.wait(EVERY_SECONDS):
            now = time.perf_counter()
            names = {one.ident: one.name for one in threading.enumerate()}
            frames = sys._current_frames()
            with self._lock:
                for ident, frame in frames.items():
                    if ident != me and ident in names:
                        self._look(ident, names[ident], frame, now - last)
            last = now

    def _look(self, ident: int, name: str, frame: FrameType, passed: float) -> None:
        cpu = time.clock_gettime(time.pthread_getcpuclockid(ident))
        self._threads[name.rpartition("_")[0] or name] += cpu - self._cpu_at.get(ident, cpu)
        self._cpu_at[ident] = cpu
        stack = []
        at: FrameType | None = frame
        while at is not None:
            stack.append(at.f_code)
            at = at.f_back
        inside = next((place for place, code in enumerate(stack) if code.co_name == WITHIN), 0)
        if inside:
            self._leaves[stack[0]] += passed
            for code in set(stack[:inside]):
                self._wall[code] += passed


class Calls:
    """CPU time by function: of the event loop, and of what runs in its threads.

    One profile a thread: a profile sees its own thread only.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all: list[cProfile.Profile] = []
        self._count: dict[str, int] = defaultdict(int)
        self._tidied = threads._tidied
        threads._tidied = self._counted

    def begin(self) -> None:
        """Forget what was counted so far, and count the event loop, which calls this.

        Only while no request is under way.
        """
        with self._lock:
            for one in self._all:
                one.clear()
            self._count.clear()
        self._mine().enable()

    def lines(self) -> list[str]:
        """Functions by their own CPU time, then by all of it; milliseconds, and calls.

        Ends the counting of the event loop.
        """
        self._mine().disable()
        with self._lock:
            used = [one for one in self._all if one.getstats()]
            if not used:
                return []
            added: Any = pstats.Stats(used[0]).add(*used[1:])  # typeshed lacks `stats`
            stats: dict[tuple[str, int, str], Any] = added.stats
            told = [", ".join(f"{path} {count} times" for path, count in self._count.items())]
        for title, column in (("own CPU", 2), ("CPU with what it calls", 3)):
            ordered = sorted(stats.items(), key=lambda item: -item[1][column])[: SHOWN + 20]
            told.append(f"-- {title}; {sum(item[1][2] for item in stats.items()) * 1e3:.0f} ms in all")
            told += [
                f"{row[column] * 1e3:9.1f} ms {row[0]:7} times  {name}  {_place(file)}:{line}"
                for (file, line, name), row in ordered
            ]
        return told

    def _counted(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        profile = self._mine()
        self._count[function.__qualname__] += 1
        profile.enable()
        try:
            return self._tidied(function, *args, **kwargs)
        finally:
            profile.disable()

    def _mine(self) -> cProfile.Profile:
        profile: cProfile.Profile | None = getattr(self._own, "profile", None)
        if profile is None:
            profile = self._own.profile = cProfile.Profile(time.thread_time)
            with self._lock:
                self._all.append(profile)
        return profile


def _listed(by: Mapping[CodeType, float]) -> list[str]:
    ordered = sorted(by.items(), key=lambda item: -item[1])[:SHOWN]
    return [
        f"{spent * 1e3:9.0f} ms  {code.co_qualname}  {_place(code.co_filename)}:{code.co_firstlineno}"
        for code, spent in ordered
    ]


def _place(file: str) -> str:
    return "/".join(file.rpartition("/site-packages/")[2].split("/")[-3:])
