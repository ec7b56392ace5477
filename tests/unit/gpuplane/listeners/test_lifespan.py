import sys
import types

import pytest

from gpuplane.listeners.lifespan import serve_lifespan


@pytest.fixture
def parts(monkeypatch):
    """Modules part_a and part_b that note what happens to them, part_bad that cannot start."""
    noted = []

    def module(name, *, fails=False):
        made = types.ModuleType(name)

        async def start():
            if fails:
                raise RuntimeError("cannot start")
            noted.append(f"{name} starts")

        async def stop():
            noted.append(f"{name} stops")
            if name == "part_b":
                raise RuntimeError("cannot stop")

        vars(made).update(start=start, stop=stop)
        monkeypatch.setitem(sys.modules, name, made)

    module("part_a")
    module("part_b")
    module("part_bad", fails=True)
    return noted


async def drive(modules):
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message["type"])

    await serve_lifespan(receive, send, modules)
    return sent


async def test_stops_in_reverse_whatever_one_raises(parts):
    assert await drive(["part_a", "part_b"]) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert parts == ["part_a starts", "part_b starts", "part_b stops", "part_a stops"]


async def test_part_that_cannot_start_fails_the_start(parts):
    assert await drive(["part_bad"]) == ["lifespan.startup.failed"]
