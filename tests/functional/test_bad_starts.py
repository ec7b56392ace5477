"""Programs that cannot start as they were told: one sentence and exit status 78, or they wait for what is missing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql

from gpuplane.errors import CONFIGURATION
from gpuplane.run import procfile
from tests.servers import forked, postgres, redis
from tests.servers.forked import ROOT, Process

COMMANDS = procfile.read(ROOT / "Procfile")
PROGRAMS = {"bootstrap": ["manage", "bootstrap"]} | {
    name: COMMANDS[name][2:] for name in ("web", "worker", "watch", "beat")
}
"""Module and arguments, as the chart starts them."""
SOON = 60.0
NOWHERE = "redis://127.0.0.1:1/0"


def environment(folder: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLANE_")}
    return {**kept, "GPUPLANE_DATA_DIR": str(folder), "GPUPLANE_SIMULATE": "0", **settings}


def refusal(program: str, given: Mapping[str, str]) -> str:
    """The one line that the program says of why it does not start."""
    ended = forked.run(*PROGRAMS[program], environment=given, seconds=SOON)
    said = (ended.output.decode() + ended.errors).strip()
    assert ended.poll() == CONFIGURATION == os.EX_CONFIG, said
    assert len(said.splitlines()) == 1, said
    return said


def eventually(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, f"after {SOON:.0f} s still not: {what}"
        time.sleep(0.02)


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A folder in which this user can make no file; nothing keeps root from one of its own."""
    if os.geteuid() == 0:
        return Path("/proc/gpuplane")
    tmp_path.chmod(0o500)
    return tmp_path


@pytest.mark.parametrize("program", PROGRAMS)
def test_missing_settings(program: str, tmp_path: Path) -> None:
    """As in an image, where nothing is embedded: both names, and then the one that is left."""
    rest = "must be set where GPUPLANE_EMBEDDED is 0, as in the images"
    given = environment(tmp_path / "data", GPUPLANE_EMBEDDED="0")
    both = "GPUPLANE_DATABASE_URL and GPUPLANE_REDIS_URL"
    assert refusal(program, given) == f"settings cannot be read: {both} {rest}"
    given["GPUPLANE_REDIS_URL"] = NOWHERE
    assert refusal(program, given) == f"settings cannot be read: GPUPLANE_DATABASE_URL {rest}"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("program", "settings"),
    [pytest.param(program, {}, id=f"{program}, no key") for program in PROGRAMS]
    + [
        pytest.param(program, {"GPUPLANE_SECRET_KEY": "a key of a Secret"}, id=f"{program}, key given")
        for program in PROGRAMS
        if program != "beat"
    ],
)
def test_a_data_folder_that_cannot_be_written_to(program: str, unwritable: Path, settings: dict[str, str]) -> None:
    """Each program writes there, with or without the signing key in it; but beat only the key."""
    said = refusal(program, environment(unwritable, GPUPLANE_REDIS_URL=NOWHERE, **settings))
    assert said.startswith(f"GPUPLANE_DATA_DIR={unwritable} cannot be written to: ")


# PostgreSQL

PASSWORD = uuid.uuid4().hex


class Database:
    """An empty database, of a role of its own."""

    def __init__(self) -> None:
        self.name = f"starts_{uuid.uuid4().hex}"
        self.administer("CREATE ROLE {0} LOGIN PASSWORD {1}", PASSWORD)
        self.administer("CREATE DATABASE {0} OWNER {0}")

    def administer(self, statement: str, *literals: str) -> None:
        given = (sql.Identifier(self.name), *map(sql.Literal, literals))
        with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*given))

    def url(self, password: str = PASSWORD) -> str:
        return f"postgres://{self.name}:{password}@{postgres.server_url().rpartition('@')[2]}/{self.name}"

    def number(self, statement: str) -> int:
        with psycopg.connect(f"{postgres.server_url()}/{self.name}", autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def migrations(self) -> int:
        """How many have run."""
        there = self.number("SELECT count(*) FROM pg_tables WHERE tablename = 'django_migrations'")
        return self.number("SELECT count(*) FROM django_migrations") if there else 0


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.administer("DROP DATABASE {0} WITH (FORCE)")
    made.administer("DROP ROLE {0}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def checks(port: int) -> dict[str, dict[str, object]]:
    """What /readyz says; empty while nobody answers."""
    try:
        found: dict[str, dict[str, object]] = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=SOON).json()[
            "checks"
        ]
    except httpx.ConnectError:
        return {}
    return found


def is_ready(port: int) -> bool:
    found = checks(port)
    return bool(found) and all(check["ok"] for check in found.values())


@pytest.mark.heavy
def test_a_wrong_password(database: Database, tmp_path: Path) -> None:
    """bootstrap says PostgreSQL's own reason at once and shows no password; a web process that runs stays, says that it
    is not ready, and is once the password holds.
    """
    wrong = uuid.uuid4().hex
    port = free_port()
    given = environment(tmp_path, GPUPLANE_REDIS_URL=redis.server_url(), GPUPLANE_PORT=str(port))
    right = {**given, "GPUPLANE_DATABASE_URL": database.url()}
    given["GPUPLANE_DATABASE_URL"] = database.url(wrong)
    refused = forked.run(*PROGRAMS["bootstrap"], environment=given, seconds=SOON)
    said = (refused.output.decode() + refused.errors).strip()
    assert refused.poll() == 1
    assert len(said.splitlines()) == 1, said
    assert "the database of GPUPLANE_DATABASE_URL cannot be used: " in said
    assert f'password authentication failed for user "{database.name}"' in said
    assert wrong not in said
    assert database.migrations() == 0
    made = forked.run(*PROGRAMS["bootstrap"], environment=right, seconds=SOON)
    assert made.poll() == 0, made.errors
    with forked.start(*PROGRAMS["web"], environment=given) as web:
        eventually(lambda: checks(port), "an answer")
        assert not is_ready(port)
        assert web.poll() is None
        database.administer("ALTER ROLE {0} PASSWORD {1}", wrong)
        eventually(lambda: is_ready(port), "ready with the same process")
        web.send_signal(signal.SIGTERM)
        assert web.wait(SOON) == 0
    assert wrong not in web.output.decode() + web.errors


def stopped_halfway(bootstrap: Process, migrations: Callable[[], int]) -> int:
    """Stop the process in the middle of its migrations, and how many had run."""
    eventually(lambda: migrations() > 5, "the first migrations")
    bootstrap.send_signal(signal.SIGSTOP)
    # whoever is signalled goes on for a moment: until two looks agree
    before = -1
    while before != (now := migrations()):
        before = now
        select.select([], [], [], 0.2)
    return before


def test_migrations_that_a_twin_has_half_done(database: Database, tmp_path: Path) -> None:
    """LEASE-2 a twin waits for who migrates and goes on where that was killed; a web process that came too early says
    what is missing, and is ready once it is there.
    """
    port = free_port()
    shared = {"GPUPLANE_DATABASE_URL": database.url(), "GPUPLANE_REDIS_URL": redis.server_url()}
    first = environment(tmp_path / "first", **shared)
    other = environment(tmp_path / "other", GPUPLANE_PORT=str(port), **shared)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with (
        forked.start(*PROGRAMS["bootstrap"], environment=first) as killed,
        forked.start(*PROGRAMS["web"], environment=other) as web,
    ):
        half = stopped_halfway(killed, database.migrations)
        with forked.start(*PROGRAMS["bootstrap"], environment=other) as twin:
            eventually(lambda: database.number(waiting) == 1, "the twin waits")
            eventually(lambda: checks(port), "an answer of web")
            missing = checks(port)["migrated"]
            assert database.migrations() == half
            assert missing["ok"] is False
            killed.kill()
            assert twin.wait(SOON) == 0, twin.errors
        count = str(missing["detail"]).removesuffix(" migrations to run")
        assert database.migrations() - half == int(count) > 0
        eventually(lambda: is_ready(port), "ready")
        web.send_signal(signal.SIGTERM)
        assert web.wait(SOON) == 0
    assert "Traceback" not in web.output.decode() + web.errors


def test_migrations_of_sqlite_that_were_half_done(tmp_path: Path) -> None:
    """The next start goes on where one was killed."""
    given = environment(tmp_path, GPUPLANE_REDIS_URL=NOWHERE)

    def migrations() -> int:
        path = f"file:{tmp_path / 'gpuplane.sqlite3'}?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True, timeout=SOON)) as connection:
            return int(connection.execute("SELECT count(*) FROM django_migrations").fetchone()[0])

    def so_far() -> int:
        try:
            return migrations()
        except sqlite3.OperationalError:  # no file, no table
            return 0

    with forked.start(*PROGRAMS["bootstrap"], environment=given) as killed:
        half = stopped_halfway(killed, so_far)
        killed.kill()
        assert killed.wait(SOON) == -signal.SIGKILL
    ended = forked.run(*PROGRAMS["bootstrap"], environment=given, seconds=SOON)
    assert ended.poll() == 0, ended.errors
    assert migrations() > half > 0
    assert forked.run("manage", "migrate", "--check", environment=given).poll() == 0
