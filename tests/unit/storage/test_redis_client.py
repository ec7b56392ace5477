"""What clients of Redis have in common, whatever they are for."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from storage import redis_client
from storage.redis_client import REDIS_ERRORS, Purpose, async_client, client, shared_client

PURPOSES = pytest.mark.parametrize("purpose", Purpose)


@PURPOSES
def test_a_client_has_the_time_out_of_its_purpose(redis_url: str, purpose: Purpose) -> None:
    with client(redis_url, purpose) as connection:
        assert connection.ping()
        options = connection.connection_pool.connection_kwargs
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (purpose.seconds, purpose.seconds)


@PURPOSES
async def test_so_has_one_on_the_event_loop(redis_url: str, purpose: Purpose) -> None:
    connection = async_client(redis_url, purpose)
    assert await connection.ping()
    options = connection.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (purpose.seconds, purpose.seconds)
    await connection.aclose()


@pytest.mark.parametrize(
    ("decode", "want"), [pytest.param(False, b"\xc3\xbc", id="bytes"), pytest.param(True, "ü", id="text")]
)
def test_answers_are_bytes_or_text(redis_url: str, decode: bool, want: str | bytes) -> None:
    with client(redis_url, Purpose.WORK, decode=decode) as connection:
        connection.set("key", "ü")
        assert connection.get("key") == want


def test_threads_wait_for_a_bounded_number_of_connections(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "CONNECTIONS_MOST", 2)
    with client(redis_url, Purpose.BULK) as connection:
        threads = [threading.Thread(target=connection.incr, args=("counted",)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert connection.get("counted") == b"12"
        assert len(connection.connection_pool._connections) <= 2


async def test_coroutines_wait_for_them_too(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "CONNECTIONS_MOST", 2)
    connection = async_client(redis_url, Purpose.BULK)
    clients = int((await connection.info("clients"))["connected_clients"])
    await asyncio.gather(*(connection.incr("counted") for _ in range(12)))
    assert await connection.get("counted") == b"12"
    assert int((await connection.info("clients"))["connected_clients"]) <= clients + 1
    await connection.aclose()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """Somebody listens there and says nothing."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with client(f"unix://{tmp_path}/silent.sock", Purpose.OPTIONAL) as connection, pytest.raises(REDIS_ERRORS):
            connection.ping()


def test_one_client_a_process_address_and_purpose(redis_url: str) -> None:
    ours = shared_client(redis_url, Purpose.STATUS)
    assert shared_client(redis_url, Purpose.STATUS) is ours
    assert shared_client(redis_url, Purpose.WORK) is not ours
