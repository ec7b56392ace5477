"""The extender's door as a process serves it, in the test's own process: the ASGI dispatcher on an event loop, its
threads, its connections.

What kube-scheduler meets, but for the socket: bodies in, answers out, binds that come together gathered. For races,
deaths and machines:

    with Door() as door:
        node = door.filtered(pod, ["n1", "n2"])
        assert door.bound(pod, node) == ""
        door.restart()          # as if the process had died: nothing in memory outlives it
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from django.conf import settings
from django.db import connections

from allocations import fleet
from allocations.backends import current_backends
from allocations.extender import views
from gpuplane.listeners import LISTENER, Message
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.body_limits import BodyLimits
from gpuplane.listeners.cluster import ROUTES, ClusterPaths
from gpuplane.listeners.plan import ListenAddress as Address
from gpuplane.listeners.threads import Lanes
from kube import event_loop
from kube.shared import shared_cluster

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
        self._run(_end_requests())
        self._close()

    def restart(self) -> None:
        """The process dies, and another one comes: no memory, no connection, nothing under way."""
        self._close()
        fleet.forget()
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

    def sent(self, path: str, body: object) -> Future[Any]:
        """A question that is not waited for; its outcome is what `post` gives or raises."""
        return self.start(self._ask(path, body))

    def start(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run anything on the door's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # inside

    def _open(self) -> None:
        self.lanes = Lanes(Closing)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="door-loop")
        self._thread.start()
        event_loop.lend(self._loop)

        def known(_: str) -> None:
            return None

        bearer = Bearer(known=known, verify=known, lanes=self.lanes)
        self._app = ClusterPaths(
            routes=ROUTES, bearer=bearer, lanes=self.lanes, limits=BodyLimits(settings.GPUPLANE_BODY_LIMIT)
        )

    def _close(self) -> None:
        async def end() -> None:
            views._binds.pop(asyncio.get_running_loop(), None)
            _close_connections()
            await asyncio.get_running_loop().shutdown_default_executor()

        event_loop.lend(None)
        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()
        self.lanes.close()

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
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, LISTENER: EXTENDER}
        await self._app(scope, receive, send)
        status = answers[0]["status"]
        content = b"".join(message.get("body", b"") for message in answers[1:])
        if status != 200:
            raise Failed(f"{status}: {content.decode()}")
        return json.loads(content)


def _bind_body(pod: Pod, node: str) -> dict[str, str]:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


async def _end_requests() -> None:
    """Nothing of a test is left when its loop ends: no request is sent any more, no socket is being opened."""
    _close_connections()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _close_connections() -> None:
    """Those of the running loop: of the world's client, and of the one that the process shares."""
    for cluster in {current_backends().cluster, shared_cluster(settings.GPUPLANE_KUBECONFIG)}:
        if cluster is not None:
            cluster.close_here()
