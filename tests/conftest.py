"""What every test finds: settings of its own, and real servers that start when first asked for.

Databases, from the weakest to the strongest:

- pytest-django's `db`: SQLite in memory, one transaction, rolled back. For services and pages.
- `ledger_db`: a migrated, empty database to which Django is swapped, once on SQLite and once on
  PostgreSQL; commits are real, threads and subprocesses open connections of their own. For the
  ledger, races and kills. `ledger_db.vendor`, `.race([work, …])`, `.fresh()` between the examples of
  a Hypothesis test, `.environment` for subprocesses. One vendor only:
  `@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)`.
  Never together with `db`.
- `postgres_url`: `postgres://…` of a migrated, empty database of its own, to which Django is not
  swapped; a subprocess takes it as `GPUPLANE_DATABASE_URL`.
- `redis_url`: `unix://…`, emptied for each test.
- `mortal_redis`: a Redis of the test's own, which may die: `.url`, `.stop()`, `.start()`, `.process_id`.
- `live_app`: the real web process over HTTP, one a module, on SQLite and a Redis of its own; Django
  is swapped to its database. `.url`, `.client(role=…)`, `.token(role=…)`.
- `chromium`: path of the browser, or a skip with the reason.

A process of a test's own that runs a module is started by `tests.servers.forked`, in a quarter of the CPU of a Python
that imports everything anew.

`make test` runs `pytest -n 2`. The servers are shared by the workers, belong to the session and end
with it, a SIGKILL of pytest included (tests/servers/guard.py). PostgreSQL comes from the `pgserver`
wheel or the system; where the wheel exists its absence is a failure, elsewhere a printed skip.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import exploring
from tests.servers import session

_OURS = frozenset({"GPUPLANE_TOOLS_DIR", "GPUPLANE_TEST_DATABASE", "GPUPLANE_TEST_POSTGRES_BIN", "GPUPLANE_CHROMIUM"})


def _settle() -> None:
    """Load Django with settings that depend on nothing outside the tests.

    Here and not by `DJANGO_SETTINGS_MODULE` in the ini, since pytest-django would load the settings
    before this file could give them a data folder; and the variable is taken away again so that the
    same holds in the workers of pytest-xdist.
    """
    if "gpuplane.settings" in sys.modules:
        raise pytest.UsageError("unset DJANGO_SETTINGS_MODULE: the tests bring their own settings")
    for name in [name for name in os.environ if name.startswith("GPUPLANE_") and name not in _OURS]:
        del os.environ[name]
    data_dir = session.enter() / f"data-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    data_dir.mkdir(exist_ok=True)
    os.environ["GPUPLANE_DATA_DIR"] = str(data_dir)
    os.environ["DJANGO_SETTINGS_MODULE"] = "gpuplane.settings"
    import django
    from django.conf import settings

    django.setup()
    del os.environ["DJANGO_SETTINGS_MODULE"]
    settings.PASSWORD_HASHERS = ["tests.passwords.OneRound", *settings.PASSWORD_HASHERS]


_settle()

# From here on Django is set up.
from django.db import connections  # noqa: E402 - after _settle()
from pytest_django.plugin import DjangoDbBlocker  # noqa: E402 - after _settle()

from allocations.whatif import run as what_if_run  # noqa: E402 - after _settle()
from allocations.whatif.confined import Confinement  # noqa: E402 - after _settle()
from kube.requeue_notify import THREAD  # noqa: E402 - after _settle()
from tests.databases import TestDatabase, connected, forget_memory  # noqa: E402 - after _settle()
from tests.servers import chromium as browsers  # noqa: E402 - after _settle()
from tests.servers import postgres, redis, web  # noqa: E402 - after _settle()

exploring.register()


def _run_and_close(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def running(thread: threading.Thread) -> None:
        try:
            run(thread)
        finally:
            connections.close_all()

    return running


# A thread's connections end with it. Left to the garbage collector, SQLite's warn from Python 3.13 on, within a test
# that has nothing to do with them.
for _kind in (threading.Thread, threading.Timer):
    _kind.run = _run_and_close(_kind.run)  # type: ignore[method-assign, assignment]  # on purpose, for all tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put heavy tests first. Of several workers the first begins with them and the others take from its end, so that
    no two disturb each other, or what waits for a browser, and none is left for last.
    """
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)


def pytest_collection_finish() -> None:
    """Set aside what lives as long as the process: else the collector of garbage looks through thousands of tests and
    all modules again and again.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Stop the servers, in the process that made the session's folder."""
    session.leave()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests this machine cannot run."""
    try:
        browsers.executable()
    except browsers.NoChromium as missing:
        terminalreporter.write_line(f"browser tests were skipped: {missing}", yellow=True)


@pytest.fixture(autouse=True)
def _fresh_memory() -> Iterator[None]:
    """No test sees what another one left in the memory of the process."""
    yield
    forget_memory()


@pytest.fixture(autouse=True)
def _patient_what_ifs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A what-if's process gives way to all others, and tests keep every core busy: who tests a deadline sets one."""
    monkeypatch.setattr(what_if_run, "CONFINEMENT", Confinement(deadline_seconds=120.0))


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_db(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[TestDatabase]:
    """A migrated, empty database with real commits, of either vendor; Django is swapped to it."""
    if "_django_db_helper" in request.fixturenames and request.node.get_closest_marker("django_db"):
        raise pytest.UsageError("ledger_db brings its own database: take the django_db mark away")
    if request.param == "postgresql":
        _require_postgres()
    with django_db_blocker.unblock(), connected(request.param, tmp_path) as database:
        yield database


@pytest.fixture
def postgres_url(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """URL of a migrated, empty PostgreSQL database for subprocesses."""
    _require_postgres()
    with django_db_blocker.unblock():
        database = TestDatabase("postgresql", tmp_path)
        yield database.url
        database.disconnect()


@pytest.fixture(autouse=True)
def _nothing_announced_later() -> Iterator[None]:
    """Whoever lets a test announce to a cluster closes the announcer with that cluster."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD], "an announcer outlives its test"


@pytest.fixture
def redis_url() -> Iterator[str]:
    """URL of an empty Redis."""
    try:
        url = redis.server_url()
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    yield url
    redis.empty(url)


@pytest.fixture
def mortal_redis() -> Iterator[redis.Mortal]:
    """A Redis of the test's own, to be stopped, killed and started again."""
    try:
        server = redis.Mortal()
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def live_app(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[web.LiveApp]:
    """The web process, running."""
    try:
        redis_server = redis.server_url("web")
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("live")
    with (
        django_db_blocker.unblock(),
        web.running(vendor="sqlite", folder=folder, redis_url=redis_server, is_forked=True) as app,
    ):
        yield app


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the system's Chromium."""
    try:
        return browsers.executable()
    except browsers.NoChromium as missing:
        pytest.skip(str(missing))


def _require_postgres() -> None:
    try:
        postgres.server_url()
    except postgres.NoPostgres as missing:
        if postgres.expected():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
