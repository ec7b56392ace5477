"""`manage.py bootstrap` as the chart's init containers run it: many at once, each in a data folder of its own."""

import json
import os
import uuid
from contextlib import ExitStack

import psycopg
import pytest

from gpuplane.credentials import MACHINES
from tests.servers import forked, postgres

PASSWORD = "given-by-a-secret-of-the-cluster"


@pytest.fixture
def empty_database():
    """URL of a PostgreSQL database without a table."""
    name = f"bootstrap_{uuid.uuid4().hex}"
    with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield f"{postgres.server_url()}/{name}"
    with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def begin(folder, **settings):
    """A bootstrap that runs."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUPLANE_")},
        "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
        "GPUPLANE_DATA_DIR": str(folder),
        "GPUPLANE_SIMULATE": "0",
        **settings,
    }
    return forked.start("manage", "bootstrap", environment=environment)


def test_twins_on_an_empty_database_agree(tmp_path, empty_database):
    given = {"GPUPLANE_DATABASE_URL": empty_database, "GPUPLANE_ADMIN_PASSWORD": PASSWORD}
    with ExitStack() as ends:
        twins = [ends.enter_context(begin(tmp_path / str(number), **given)) for number in range(3)]
        ended = [twin.wait(120) for twin in twins]

    assert ended == [0, 0, 0], "\n".join(twin.output.decode() + twin.errors for twin in twins)
    for number in range(3):
        told = json.loads((tmp_path / str(number) / "credentials.json").read_text())
        assert told == {"url": "http://127.0.0.1:8000", "username": "admin"}
    with psycopg.connect(empty_database) as connection:
        accounts = connection.execute("SELECT username FROM auth_user ORDER BY 1").fetchall()
        assert accounts == [("admin",), *((name,) for name in sorted(name for name, _ in MACHINES.values()))]
        assert connection.execute("SELECT count(*) FROM knox_authtoken").fetchone() == (0,)


def test_weak_password_is_named_by_its_setting(tmp_path):
    with begin(tmp_path, GPUPLANE_ADMIN_PASSWORD="short") as weak:
        assert weak.wait(120) == 1

    output = weak.output.decode() + weak.errors
    assert "GPUPLANE_ADMIN_PASSWORD: " in output
    assert "Traceback" not in output
    assert not (tmp_path / "credentials.json").exists()
