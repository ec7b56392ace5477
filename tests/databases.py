"""Real databases for tests that commit: SQLite files and PostgreSQL, under the product's own options.

Made by the fixtures `ledger_db` and `postgres_url` (tests/conftest.py). Every database is a copy of
one that was migrated once in the session, or such a copy emptied, so that it holds exactly what migrations leave in it.
While a `TestDatabase` is connected, `django.db.connection` is it, in every thread; nothing is rolled back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import SyncToAsync
from django.core.management import call_command
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper as PostgresWrapper

from access import tokens
from allocations import fleet
from claims.queues import DIRECTORY
from gpuplane.settings import databases
from storage.cursors import Query, on_postgresql
from tests.servers import postgres, postgres_databases, session

if TYPE_CHECKING:
    from storage.loop_connection import LoopConnection

T = TypeVar("T")
POOL_SIZE = 12
_TEMPLATE = "gpuplane_template"
_numbers = itertools.count(1)


class TestDatabase:
    """A migrated database of its own, and the way to swap Django over to it.

    `vendor` is `sqlite` or `postgresql`. `fresh()` replaces it by an empty one (between the examples of
    a Hypothesis test, say). `environment` gives a subprocess the same database.
    """

    __test__ = False  # pytest: a fixture's value, no test class

    def __init__(self, vendor: str, folder: Path) -> None:
        self.vendor = vendor
        self._folder = folder
        self._before: tuple[Any, Any] | None = None
        self._make()

    def _make(self) -> None:
        self.data_dir = self._folder / f"database-{next(_numbers)}"
        self.data_dir.mkdir(parents=True)
        self.url = ""
        if self.vendor == "postgresql":
            _migrated_postgres()
            self._name = postgres_databases.take(_TEMPLATE)
            self.url = f"{postgres.server_url()}/{self._name}"
        else:
            shutil.copyfile(_migrated_sqlite(), self.data_dir / "gpuplane.sqlite3")

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a subprocess that shall work on this database."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
            "GPUPLANE_DATA_DIR": str(self.data_dir),
            "GPUPLANE_DATABASE_URL": self.url,
        }

    def connect(self) -> None:
        """Make this Django's database in every thread."""
        self._before = _swap(databases.describe(url=self.url, data_dir=self.data_dir, pool_size=POOL_SIZE))

    @contextlib.contextmanager
    def through(self, url: str) -> Iterator[None]:
        """Reach this PostgreSQL by another URL, that of a proxy in front of it, for the body of the `with`."""
        _close_pool()
        before = _swap(databases.describe(url=url, data_dir=self.data_dir, pool_size=POOL_SIZE))
        try:
            yield
        finally:
            _restore(*before)

    def disconnect(self) -> None:
        """Give Django back the database that it had; this one ends."""
        if self._before is not None:
            _restore(*self._before)
            self._before = None
        if self.vendor == "postgresql":
            postgres_databases.give_back(self._name)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def fresh(self) -> None:
        """Drop this database and take an empty one in its place."""
        connected = self._before is not None
        self.disconnect()
        self._make()
        if connected:
            self.connect()

    def race(self, works: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Run every work in a thread and on a connection of its own, started together; results in order.

        An exception that a work raised stands in its place.
        """
        together = threading.Barrier(len(works))

        def run(work: Callable[[], T]) -> T | Exception:
            together.wait(30)
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - the test judges what each racer met
                return error
            finally:
                connections.close_all()  # the pool of connections may be smaller than that of threads, which live on

        with ThreadPoolExecutor(len(works)) as threads:
            return list(threads.map(run, works))


def somebody_waits_for_a_lock() -> bool:
    """Whether a session of PostgreSQL's server does."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def end_backend(pid: int) -> None:
    """End a session of PostgreSQL's server, whoever has it. The thread's own connection is given back."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    connections["default"].close()


async def backend_of(there: LoopConnection) -> int:
    """The session behind a connection that is made in the background."""
    async with asyncio.timeout(10):
        while (rows := await there.rows(Query("SELECT pg_backend_pid()", []))) is None:  # noqa: ASYNC110 - as gateways
            await asyncio.sleep(0.01)
    return int(rows[0][0])


@contextlib.contextmanager
def connected(vendor: str, folder: Path) -> Iterator[TestDatabase]:
    """A database to which Django is swapped for the time being."""
    database = TestDatabase(vendor, folder)
    database.connect()
    try:
        yield database
    finally:
        database.disconnect()


def _swap(entry: dict[str, Any]) -> tuple[Any, Any]:
    """Point the alias `default` elsewhere, without closing what stands there (an in-memory database lives by it)."""
    before = (connections.settings["default"], connections["default"])
    connections.settings["default"] = entry
    connections.settings = connections.configure_settings(connections.settings)
    connections["default"] = connections.create_connection("default")
    _forget_in_async_threads()
    forget_memory()
    return before


def _restore(settings: Any, connection: Any) -> None:
    _forget_in_async_threads()
    _close_pool()
    connections.settings["default"] = settings
    connections["default"] = connection
    forget_memory()


def _close_pool() -> None:
    """Close this thread's connection, and the pool that all threads share."""
    connection = connections["default"]
    connection.close()
    if isinstance(connection, PostgresWrapper):
        connection.close_pool()


def forget_memory() -> None:
    """Drop what this process remembers of the database: it would be of another database, or rolled back."""
    fleet.forget()
    tokens.forget()
    DIRECTORY.forget()
    on_postgresql.cache_clear()


def _forget_in_async_threads() -> None:
    """asgiref keeps one thread for `sync_to_async`, and that thread its connection: close and drop it."""

    def forget() -> None:
        connections.close_all()
        with contextlib.suppress(AttributeError):
            del connections["default"]

    SyncToAsync.single_thread_executor.submit(forget).result()


def _migrated_sqlite() -> Path:
    """The file that every SQLite database starts as."""

    def migrate() -> dict[str, Any]:
        folder = session.enter() / "sqlite-template"
        folder.mkdir()
        before = _swap(databases.describe(url="", data_dir=folder, pool_size=POOL_SIZE))
        try:
            call_command("migrate", verbosity=0)
            with connections["default"].cursor() as cursor:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            _restore(*before)
        return {"path": str(folder / "gpuplane.sqlite3")}

    return Path(session.once("sqlite-template", migrate)["path"])


def _migrated_postgres() -> None:
    """The database that every PostgreSQL database is a copy of."""

    def migrate() -> dict[str, Any]:
        postgres_databases.administer("CREATE DATABASE {}", _TEMPLATE)
        url = f"{postgres.server_url()}/{_TEMPLATE}"
        before = _swap(databases.describe(url=url, data_dir=session.enter(), pool_size=POOL_SIZE))
        try:
            call_command("migrate", verbosity=0)
        finally:
            _restore(*before)
        return {"name": _TEMPLATE}

    session.once("postgres-template", migrate)
