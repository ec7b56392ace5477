"""The agent's connection over TLS: it trusts the CA of its file and no other, and sends nobody else its token."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from agent import session as sessions
from agent.outbox import Outbox
from agent.session import Session
from tests.certificates import Authority
from tests.unit.agent.listening import Server


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "pause_seconds", lambda _attempt, *, longest: 0.01 if longest else 0.0)


@asynccontextmanager
async def listening(server: Server, authority: Authority) -> AsyncIterator[str]:
    """The server behind TLS; its address."""
    pair = authority.issue("gpuplane")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)

    async def told(socket: ServerConnection) -> None:
        await server._serve(socket)

    async with serve(told, "127.0.0.1", 0, ssl=context) as made:
        yield f"https://127.0.0.1:{next(iter(made.sockets)).getsockname()[1]}"


@asynccontextmanager
async def running(url: str, ca_file: Path | None) -> AsyncIterator[Session]:
    """A session that runs."""
    session = Session(url=url, node="n1", version="1", token=lambda: "secret", outbox=Outbox(), ca_file=ca_file)
    task = asyncio.create_task(session.run())
    try:
        yield session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_session_over_tls(tmp_path: Path) -> None:
    """NODE-1 the CA of the file is trusted."""
    server, authority = Server(), Authority(tmp_path / "ours")
    async with listening(server, authority) as url, running(url, authority.certificate):
        await server.until(lambda: server.tokens == ["Bearer secret"])


async def test_no_token_to_whom_the_ca_does_not_know_and_the_ca_is_read_anew(tmp_path: Path) -> None:
    """NODE-1 another CA's server hears nothing; once the file holds its CA the next session is opened."""
    server, ours, others = Server(), Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    ca_file = tmp_path / "ca.crt"
    shutil.copy(others.certificate, ca_file)
    ended: asyncio.Queue[str] = asyncio.Queue()
    async with listening(server, ours) as url, running(url, ca_file) as session:
        session._ended = ended.put_nowait  # type: ignore[method-assign, assignment]  # what the log would say
        async with asyncio.timeout(10):
            assert "CERTIFICATE_VERIFY_FAILED" in await ended.get()
        assert server.tokens == []
        shutil.copy(ours.certificate, ca_file)
        await server.until(lambda: server.tokens == ["Bearer secret"])


async def test_a_ca_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    """NODE-1 the kubelet may bring the file later."""
    server, authority = Server(), Authority(tmp_path / "ours")
    ca_file = tmp_path / "ca.crt"
    async with listening(server, authority) as url, running(url, ca_file):
        await asyncio.sleep(0)
        shutil.copy(authority.certificate, ca_file)
        await server.until(lambda: server.tokens == ["Bearer secret"])
