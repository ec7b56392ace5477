"""The extender's door as a process serves it, in the test's own process: the ASGI dispatcher on an event loop, its threads, its connections.

What kube-scheduler meets, but for the socket: bodies in, answers out, binds that come together gathered. For races, deaths and machines:

    with Door() as door:
        node = door.filtered(pod, ["n1", "n2"])
        assert door.bound(pod, node) == ""
        door.restart()          # as if the process had died: nothing in memory outlives it
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from django.conf import settings
from django.db import connections

from allocations import fleet
from allocations.extender import views
from gpuplane.doors import DOOR, Message
from gpuplane.doors.bearer import Bearer
from gpuplane.doors.cluster import ROUTES, Cluster
from gpuplane.doors.plan import Door as Address
from gpuplane.doors.threads import BINDERS, WORKERS

P = ParamSpec("P")
R = TypeVar("R")
Pod = Mapping[str, Any]
PATIENCE_SECONDS = 120.0
EXTENDER = Address(name="extender", host="127.0.0.1", port=0, prefixes=("/extender/",), bearer=False)


class Failed(Exception):
    """The door answered with another status than 200: kube-scheduler sees an extender that does not work."""


class Closing(ThreadPoolExecutor):
    """Threads that let go of their database connection after each call, as a test's database ends before they do."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        def closing() -> R:
            try:
                return fn(*args, **kwargs)
            finally:
                connections.close_all()

        return super().submit(closing)


class Door:
    """Of one process. Used from any thread but the loop's own."""

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def restart(self) -> None:
        """The process dies, and another one comes: no memory, no connection, nothing under way."""
        self._close()
        fleet.FLEET.forget()
        self._open()

    def filtered(self, pod: Pod, nodes: Iterable[str]) -> str | None:
        """The node that filter chose, None for a refusal. Raises Failed."""
        answer = self.post("/extender/filter", {"Pod": pod, "NodeNames": list(nodes)})
        assert answer["Error"] == ""
        passed = answer["NodeNames"] or []
        assert len(passed) <= 1
        return passed[0] if passed else None

    def bound(self, pod: Pod, node: str) -> str:
        """The error of bind, empty when it went well. Raises Failed."""
        error = self.bound_together([(pod, node)])[0]
        if isinstance(error, Failed):
            raise error
        return error

    def bound_together(self, asked: Sequence[tuple[Pod, str]]) -> list[str | Failed]:
        """The errors of binds that are all sent at once, in order."""

        async def everybody() -> list[str | Failed | BaseException]:
            sent = (self._ask("/extender/bind", _bind_body(pod, node)) for pod, node in asked)
            return list(await asyncio.gather(*sent, return_exceptions=True))

        found: list[str | Failed] = []
        for answer in self._run(everybody()):
            if isinstance(answer, dict):
                found.append(answer["Error"])
            elif isinstance(answer, Failed):
                found.append(answer)
            else:
                assert isinstance(answer, BaseException)
                raise answer
        return found

    def post(self, path: str, body: object) -> Any:
        """The answer to any question. Raises Failed."""
        return self._run(self._ask(path, body))

    # inside

    def _open(self) -> None:
        self._threads = Closing(WORKERS, thread_name_prefix="door")
        self._binders = Closing(BINDERS, thread_name_prefix="door-bind")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="door-loop")
        self._thread.start()

        def known(_: str) -> None:
            return None

        bearer = Bearer(known=known, verify=known, executor=self._threads)
        self._app = Cluster(
            routes=ROUTES,
            bearer=bearer,
            executor=self._threads,
            binders=self._binders,
            body_limit=settings.GPUPLANE_BODY_LIMIT,
        )

    def _close(self) -> None:
        async def end() -> None:
            binds = views._binds.pop(asyncio.get_running_loop(), None)
            if binds is not None:
                binds.close()
            await asyncio.get_running_loop().shutdown_default_executor()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()
        self._threads.shutdown()
        self._binders.shutdown()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    async def _ask(self, path: str, body: object) -> Any:
        told = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        answers: list[Message] = []

        async def receive() -> Message:
            return told.pop()

        async def send(message: Message) -> None:
            answers.append(message)

        headers = [(b"host", b"127.0.0.1:8001"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, DOOR: EXTENDER}
        await self._app(scope, receive, send)
        status = answers[0]["status"]
        content = b"".join(message.get("body", b"") for message in answers[1:])
        if status != 200:
            raise Failed(f"{status}: {content.decode()}")
        return json.loads(content)


def _bind_body(pod: Pod, node: str) -> dict[str, str]:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
