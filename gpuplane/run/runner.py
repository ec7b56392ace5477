"""`make run`: starts everything in order, shows it, keeps it running, and ends it in order.

Kept true: nothing outlives the runner (the tether sees to SIGKILL); a stop is bounded: each process gets
GRACE_SECONDS, a second Ctrl-C ends all at once; what is printed at the end of the start works, and holds no secret.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from gpuplane import settings
from gpuplane.doors.plan import Door, doors
from gpuplane.run import frontend, lock, probes, procfile, surroundings
from gpuplane.run.board import Board
from gpuplane.run.child import Child, GaveUp
from gpuplane.run.redis import MISSING, find_server
from gpuplane.run.surroundings import ROOT, CannotRun

GRACE_SECONDS = 8.0
ESSENTIAL = ("redis", "web")
START_ORDER = ("worker", "watch", "beat", "simulator")
STOP_ORDER = ("bootstrap", "simulator", "beat", "watch", "worker", "web", "redis")
CANARY_CHECK_SECONDS = 15.0
CANARY_SILENT_SECONDS = 90.0
PATIENCE_SECONDS = 60.0


class Runner:
    """One run on one data folder."""

    def __init__(self, *, planned: tuple[Door, ...], data_dir: Path, descriptor: int, board: Board) -> None:
        self._planned = planned
        self._data_dir = data_dir
        self._descriptor = descriptor
        self._board = board
        self._redis_url = os.environ.get("GPUPLANE_REDIS_URL", "").strip()
        self._embedded = not self._redis_url
        if self._embedded:
            self._redis_url = surroundings.redis_url(data_dir)
        self._environment = surroundings.environment(data_dir=data_dir, port=planned[0].port, redis=self._redis_url)
        self._commands = procfile.read(ROOT / "Procfile")
        self._children: dict[str, Child] = {}
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> int:
        """Run until a signal or a process that cannot be kept alive. The exit status."""
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
        self._board.say("run.failed", why=self._failure)
        return 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails ends the run; what a stop cancelled or ended does not count."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failure = self._failure or error
        self._stop.set()

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._board.say("run.killed", signal=signal.Signals(number).name)
            for child in self._children.values():
                child.kill()
            return
        self._board.say("run.stopping", signal=signal.Signals(number).name)
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
            await self._until_redis()
        await self._prepare()
        self._launch("web")
        url = self._planned[0].url
        await self._until_healthy(f"{url}/livez")
        for name in START_ORDER:
            if self._wanted(name):
                self._launch(name)
        await self._until_healthy(f"{url}/readyz")
        self._greet()

    async def _prepare(self) -> None:
        """Files of the pages, database, accounts."""
        if not frontend.is_current():
            self._board.say("pages.installing")
            try:
                await asyncio.to_thread(frontend.install)
            except frontend.FrontendMissing as error:
                raise CannotRun(str(error)) from error
        bootstrap = self._child("bootstrap", ["python", "manage.py", "bootstrap"])
        if await bootstrap.once() != 0:
            raise CannotRun("the database or the accounts could not be prepared; the lines of bootstrap say why")

    def _wanted(self, name: str) -> bool:
        if name == "watch":
            return bool(settings.GPUPLANE_KUBECONFIG)
        if name == "simulator":
            return settings.GPUPLANE_SIMULATE
        return name in self._commands

    def _child(self, name: str, command: list[str]) -> Child:
        child = Child(
            name,
            command,
            environment=self._environment,
            folder=ROOT,
            board=self._board,
            lock=self._descriptor,
            essential=name in ESSENTIAL,
        )
        self._children[name] = child
        return child

    def _launch(self, name: str) -> None:
        if self._stop.is_set():
            return
        self._board.say("process.starts", name=name)
        self._child(name, self._commands[name]).start().add_done_callback(self._ended)

    async def _until_redis(self) -> None:
        path = Path(self._redis_url.removeprefix("unix://"))
        while not await probes.redis_answers(path):  # noqa: ASYNC110 - another process tells us nothing by itself
            await asyncio.sleep(probes.PAUSE_SECONDS)

    async def _until_healthy(self, url: str) -> None:
        """Wait; from time to time say what is missing."""
        loop = asyncio.get_running_loop()
        say_at = loop.time() + PATIENCE_SECONDS
        while not (found := await probes.health(url)).ok:
            if loop.time() > say_at:
                self._board.say("run.waits", url=url, missing="; ".join(found.missing))
                say_at = loop.time() + PATIENCE_SECONDS
            await asyncio.sleep(probes.PAUSE_SECONDS)

    def _greet(self) -> None:
        path = self._data_dir / "credentials.json"
        credentials = json.loads(path.read_text())
        others = [f"{door.name} door at {door.url}" for door in self._planned[1:]]
        self._board.say("run.ready", url=credentials["url"])
        self._board.banner(
            [
                f"gpuplane is ready at {credentials['url']}",
                *how_to_sign_in(credentials, path=path, given=bool(settings.GPUPLANE_ADMIN_PASSWORD)),
                *([f"tokens for REST and for a cluster: {path}"] if "api_token" in credentials else []),
                *others,
                "Ctrl-C stops everything",
            ]
        )

    async def _check_canary(self) -> None:
        """Restart a worker that lives but no longer works."""
        worker, beat = self._children.get("worker"), self._children.get("beat")
        if worker is None or beat is None:
            return
        silent = min(probes.canary_age_seconds(self._data_dir), worker.up_seconds, beat.up_seconds)
        if silent < CANARY_SILENT_SECONDS:
            return
        if self._embedded and not await probes.redis_answers(Path(self._redis_url.removeprefix("unix://"))):
            return
        self._board.say("worker.deaf", silent_seconds=round(silent))
        worker.restart()

    async def _end(self) -> None:
        """Stop in order: what asks first, what is asked last."""
        for name in STOP_ORDER:
            child = self._children.get(name)
            if child is not None:
                await child.stop(grace_seconds=GRACE_SECONDS)
        self._board.say("run.ended")


def how_to_sign_in(credentials: Mapping[str, str], *, path: Path, given: bool) -> list[str]:
    """Lines for a person: where the password lies, never the password. `given`: by GPUPLANE_ADMIN_PASSWORD, at the first start."""
    username = credentials.get("username")
    if not username:
        return ["the first account is shut or deleted; python manage.py createsuperuser makes another admin"]
    if "password" in credentials:
        return [f"sign in as {username}; the password is in {path}"]
    first = "GPUPLANE_ADMIN_PASSWORD of the first start, or the one set since" if given else "the password that was set"
    return [f"sign in as {username}: {first}", f"lost it? python manage.py changepassword {username}"]


def run() -> int:
    """Check the surroundings, then run. Raises CannotRun, AlreadyRunning, DoorRefused, BadProcfile."""
    os.umask(0o077)
    if settings.GPUPLANE_MAIN_TLS or settings.GPUPLANE_AGENTS_ONLY:
        raise surroundings.CannotRun(
            "GPUPLANE_MAIN_TLS and GPUPLANE_AGENTS_ONLY are for `python -m gpuplane.serve`: "
            "make run serves everything, in plain HTTP"
        )
    data_dir = settings.GPUPLANE_DATA_DIR
    descriptor = lock.take(data_dir)
    host = settings.GPUPLANE_HOST
    planned = doors(
        host=host,
        port=surroundings.choose_port(host, settings.GPUPLANE_PORT),
        extender_listen=settings.GPUPLANE_EXTENDER_LISTEN,
        webhook_listen=settings.GPUPLANE_WEBHOOK_LISTEN,
        certificate=settings.GPUPLANE_TLS_CERT,
        key=settings.GPUPLANE_TLS_KEY,
        client_ca=settings.GPUPLANE_CLIENT_CA,
        webhook_client_ca=settings.GPUPLANE_WEBHOOK_CLIENT_CA,
    )
    surroundings.check_free(planned)
    board = Board(data_dir / "log")
    try:
        runner = Runner(planned=planned, data_dir=data_dir, descriptor=descriptor, board=board)
        return asyncio.run(runner.run())
    finally:
        board.close()
