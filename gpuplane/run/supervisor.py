"""`make run`: starts everything in order, shows its lines, keeps it running, and stops it in order.

A simulated cluster starts before gpuplane, whose processes get its kubeconfig. Invariants: nothing outlives the
supervisor, also after SIGKILL (`parent_death`); each process gets GRACE_SECONDS to stop, and a second Ctrl-C ends all
at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from gpuplane import settings
from gpuplane.listeners.plan import ListenAddress, listen_addresses
from gpuplane.run import frontend, lock, preflight, probes, procfile
from gpuplane.run.child import Child, GaveUp
from gpuplane.run.console import Console
from gpuplane.run.preflight import ROOT, CannotRun
from gpuplane.run.redis import MISSING, find_server

GRACE_SECONDS = 8.0
ESSENTIAL = ("redis", "web")
START_ORDER = ("worker", "watch", "beat")
STOP_ORDER = ("bootstrap", "beat", "watch", "worker", "simulator", "web", "redis")
CANARY_CHECK_SECONDS = 15.0
CANARY_SILENT_SECONDS = 90.0
PATIENCE_SECONDS = 60.0


class Supervisor:
    """One run on one data folder."""

    def __init__(self, *, planned: tuple[ListenAddress, ...], data_dir: Path, lock_fd: int, console: Console) -> None:
        self._planned = planned
        self._data_dir = data_dir
        self._lock_fd = lock_fd
        self._console = console
        self._redis_url = os.environ.get("GPUPLANE_REDIS_URL", "").strip()
        self._embedded = not self._redis_url
        if self._embedded:
            self._redis_url = preflight.redis_url(data_dir)
        self._environment = preflight.environment(data_dir=data_dir, port=planned[0].port, redis=self._redis_url)
        self._kubeconfig = settings.SIMULATED_KUBECONFIG
        if settings.GPUPLANE_SIMULATE:
            self._environment["GPUPLANE_KUBECONFIG"] = str(self._kubeconfig)
        self._commands = procfile.read(ROOT / "Procfile")
        self._children: dict[str, Child] = {}
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> int:
        """Run until a signal, or until a process cannot be kept alive. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        work = asyncio.create_task(self._work())
        work.add_done_callback(self._ended)
        await self._stop.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await self._end()
        if self._failure is None:
            return 0
        if not isinstance(self._failure, (GaveUp, CannotRun)):
            raise self._failure
        self._console.say("run.failed", why=self._failure)
        return 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the run if the task failed and was not cancelled."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failure = self._failure or error
        self._stop.set()

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._console.say("run.killed", signal=signal.Signals(number).name)
            for child in self._children.values():
                child.kill()
            return
        self._console.say("run.stopping", signal=signal.Signals(number).name)
        self._stop.set()

    async def _work(self) -> None:
        await self._start()
        while True:
            await asyncio.sleep(CANARY_CHECK_SECONDS)
            await self._check_canary()

    async def _start(self) -> None:
        if self._embedded:
            if find_server() is None:
                raise CannotRun(MISSING)
            self._launch("redis")
            while not await self._redis_answers():  # noqa: ASYNC110 - another process sends no event
                await asyncio.sleep(probes.PAUSE_SECONDS)
        if settings.GPUPLANE_SIMULATE:
            self._launch("simulator")
        await self._prepare()
        if settings.GPUPLANE_SIMULATE:
            while not await asyncio.to_thread(  # noqa: ASYNC110 - another process sends no event
                probes.cluster_answers, self._kubeconfig
            ):
                await asyncio.sleep(probes.PAUSE_SECONDS)
        self._launch("web")
        url = self._planned[0].url
        await self._until_healthy(f"{url}/livez")
        for name in START_ORDER:
            if name in self._commands:
                self._launch(name)
        await self._until_healthy(f"{url}/readyz")
        self._show_addresses()

    async def _prepare(self) -> None:
        """Install the pages' files; prepare database and accounts."""
        if not frontend.is_current():
            self._console.say("pages.installing")
            try:
                await asyncio.to_thread(frontend.install)
            except frontend.FrontendMissing as error:
                raise CannotRun(str(error)) from error
        bootstrap = self._child("bootstrap", ["python", "manage.py", "bootstrap"])
        if await bootstrap.once() != 0:
            raise CannotRun("the database or the accounts could not be prepared; the lines of bootstrap say why")

    def _child(self, name: str, command: list[str]) -> Child:
        child = Child(
            name,
            command,
            environment=self._environment,
            folder=ROOT,
            console=self._console,
            lock_fd=self._lock_fd,
            essential=name in ESSENTIAL,
        )
        self._children[name] = child
        return child

    def _launch(self, name: str) -> None:
        if self._stop.is_set():
            return
        self._console.say("process.starts", name=name)
        self._child(name, self._commands[name]).start().add_done_callback(self._ended)

    async def _redis_answers(self) -> bool:
        return await probes.redis_answers(Path(self._redis_url.removeprefix("unix://")))

    async def _until_healthy(self, url: str) -> None:
        """Wait; log every PATIENCE_SECONDS what is missing."""
        loop = asyncio.get_running_loop()
        log_at = loop.time() + PATIENCE_SECONDS
        while missing := await asyncio.to_thread(probes.failed_checks, url):
            if loop.time() > log_at:
                self._console.say("run.waits", url=url, missing="; ".join(missing))
                log_at = loop.time() + PATIENCE_SECONDS
            await asyncio.sleep(probes.PAUSE_SECONDS)

    def _show_addresses(self) -> None:
        path = self._data_dir / "credentials.json"
        credentials = json.loads(path.read_text())
        others = [f"{listener.name} listener at {listener.url}" for listener in self._planned[1:]]
        self._console.say("run.ready", url=credentials["url"])
        self._console.banner(
            [
                f"gpuplane is ready at {credentials['url']}",
                *how_to_sign_in(credentials, path=path, given=bool(settings.GPUPLANE_ADMIN_PASSWORD)),
                *([f"tokens for REST and for a cluster: {path}"] if "api_token" in credentials else []),
                *others,
                "Ctrl-C stops everything",
            ]
        )

    async def _check_canary(self) -> None:
        """Restart a worker that runs but receives no tasks."""
        worker, beat = self._children.get("worker"), self._children.get("beat")
        if worker is None or beat is None:
            return
        silent = min(probes.canary_age_seconds(self._data_dir), worker.up_seconds, beat.up_seconds)
        if silent < CANARY_SILENT_SECONDS:
            return
        if self._embedded and not await self._redis_answers():
            return
        self._console.say("worker.deaf", silent_seconds=round(silent))
        worker.restart()

    async def _end(self) -> None:
        """Stop clients before servers; the simulated cluster serves workers and watches, and calls web."""
        for name in STOP_ORDER:
            if child := self._children.get(name):
                await child.stop(grace_seconds=GRACE_SECONDS)
        self._console.say("run.ended")


def how_to_sign_in(credentials: Mapping[str, str], *, path: Path, given: bool) -> list[str]:
    """Lines that say where the password is, never the password. `given`: GPUPLANE_ADMIN_PASSWORD is set."""
    username = credentials.get("username")
    if not username:
        return ["the first account is shut or deleted; python manage.py createsuperuser makes another admin"]
    if "password" in credentials:
        return [f"sign in as {username}; the password is in {path}"]
    first = "GPUPLANE_ADMIN_PASSWORD of the first start, or the one set since" if given else "the password that was set"
    return [f"sign in as {username}: {first}", f"lost it? python manage.py changepassword {username}"]


def run() -> int:
    """Check the machine, then run. Raises CannotRun, AlreadyRunning, ListenAddressRefused, BadProcfile."""
    if settings.GPUPLANE_MAIN_TLS or settings.GPUPLANE_AGENTS_ONLY:
        raise preflight.CannotRun(
            "GPUPLANE_MAIN_TLS and GPUPLANE_AGENTS_ONLY are for `python -m gpuplane.serve`: "
            "make run serves everything, in plain HTTP"
        )
    data_dir = settings.GPUPLANE_DATA_DIR
    lock_fd = lock.take(data_dir)
    port = preflight.choose_port(settings.GPUPLANE_HOST, settings.GPUPLANE_PORT)
    planned = listen_addresses(settings, port=port)
    preflight.check_free(planned)
    console = Console(data_dir / "log")
    try:
        supervisor = Supervisor(planned=planned, data_dir=data_dir, lock_fd=lock_fd, console=console)
        return asyncio.run(supervisor.run())
    finally:
        console.close()
