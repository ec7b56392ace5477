"""On which event loop requests run, and what becomes of them when it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from kube import event_loop
from kube.errors import OutcomeUnknown, Unreachable
from kube.http1 import Response
from tests.fakes.script import OK, Script
from tests.unit.kube.transports import CLOSING, asking, made


@pytest.fixture
def lent() -> Iterator[None]:
    yield
    event_loop.lend(None)


@pytest.mark.usefixtures("lent")
def test_threads_use_the_connections_of_a_loop_that_is_lent() -> None:
    script = Script([OK], [OK])

    async def story() -> list[bytes]:
        event_loop.lend(asyncio.get_running_loop())
        with script.serving() as address, closing(made(address)) as carried:
            answers = [(await asking(carried, thread=thread)()).data for thread in (False, True)]
            assert script.connections == 1
            return answers

    assert asyncio.run(story()) == [b"ok", b"ok"]


@pytest.mark.parametrize(("method", "want"), [("GET", Unreachable), ("POST", OutcomeUnknown)])
def test_what_is_under_way_when_a_loop_ends_is_reported(method: str, want: type[Exception]) -> None:
    """LEASE-3 its connection is closed with the others; a write may have been applied."""

    script = Script([], [])

    async def story() -> None:
        with script.serving() as address, closing(made(address)) as carried:
            asked: asyncio.Future[Response] = asyncio.ensure_future(asking(carried, thread=False)(method))
            assert await asyncio.to_thread(script.asked.wait, 10)
            carried.close_here()
            with pytest.raises(want):
                await asked

    asyncio.run(story())


def test_a_loop_that_ends_opens_no_connection_any_more() -> None:
    """LEASE-3 what waits for its turn when the loop ends is not sent, nor is what comes after that."""
    script = Script([], [OK], [OK])

    async def story() -> None:
        with script.serving() as address, closing(made(address, connections=1)) as carried:
            ask = asking(carried, thread=False)
            sent, waiting = (asyncio.ensure_future(ask("POST")) for _ in range(2))
            assert await asyncio.to_thread(script.asked.wait, 10)
            carried.close_here()
            with pytest.raises(OutcomeUnknown):
                await sent
            for refused in (waiting, ask("POST")):
                with pytest.raises(Unreachable, match="the event loop of the request ends"):
                    await refused
            assert script.connections == 1

    asyncio.run(story())


@pytest.mark.usefixtures("lent")
def test_a_call_that_would_block_the_loop_it_waits_for_is_refused() -> None:
    async def story() -> None:
        event_loop.lend(asyncio.get_running_loop())
        carried = made("http://127.0.0.1:9")
        with pytest.raises(RuntimeError, match="by `await`"):
            carried.run(carried.closed_within(1))

    asyncio.run(story())


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("cancelled", [True, False], ids=["its tasks are cancelled", "it stops as it stands"])
def test_a_loop_that_ends_leaves_no_thread_waiting(cancelled: bool) -> None:
    """LEASE-3 what was under way when the process ended may have been applied."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of a task that it leaves behind
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    event_loop.lend(loop)
    carried = made("http://127.0.0.1:9")
    began = threading.Event()

    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    def end() -> None:
        assert began.wait(10)

        def stop() -> None:
            for task in asyncio.all_tasks(loop) if cancelled else ():
                task.cancel()
            loop.call_soon(loop.call_soon, loop.stop)

        loop.call_soon_threadsafe(stop)
        serving.join(10)
        loop.close()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(OutcomeUnknown, match="the process ends"):
        carried.run(endless())
    ending.join(10)


FORKING = """
import os, sys
from kube.http1 import Request
from tests.unit.kube.test_transport import made
carried = made(sys.argv[1])
def ask():
    return carried.run(carried.send(Request(method="GET", target="/x", seconds=5.0)))
assert ask().data == b"ok"
child = os.fork()
if child == 0:
    os._exit(0 if ask().data == b"ok" else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_asks_on_a_loop_of_its_own() -> None:
    script = Script([CLOSING], [CLOSING])
    with script.serving() as address:
        done = subprocess.run([sys.executable, "-c", FORKING, address], timeout=60, check=False)
    assert done.returncode == 0
    assert len([request for request in script.requests if request]) == 2
