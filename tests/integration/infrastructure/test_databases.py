"""The fixtures of tests/conftest.py do what their docstring promises."""

import os
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from nodes.models import Node
from tests.databases import TestDatabase
from tests.servers import forked


def add_node(name: str) -> None:
    now = timezone.now()
    Node.objects.create(name=name, registered_at=now, changed_at=now)


def names() -> list[str]:
    return list(Node.objects.values_list("name", flat=True))


def test_ledger_db_is_the_vendor_asked_for_and_empty(ledger_db: TestDatabase) -> None:
    assert connection.vendor == ledger_db.vendor
    assert names() == []
    add_node("n1")
    assert names() == ["n1"]


def test_threads_see_what_others_committed(ledger_db: TestDatabase) -> None:
    add_node("n0")

    def add_and_look(name: str) -> list[str]:
        add_node(name)
        return names()

    seen = ledger_db.race([partial(add_and_look, f"n{i}") for i in range(1, 5)])
    assert names() == ["n0", "n1", "n2", "n3", "n4"]
    assert all(isinstance(found, list) and "n0" in found for found in seen)


def test_a_race_gives_exceptions_in_their_place(ledger_db: TestDatabase) -> None:
    def breaks() -> None:
        raise KeyError("x")

    first, second = ledger_db.race([breaks, names])
    assert isinstance(first, KeyError)
    assert second == []


def test_async_code_sees_the_same_database(ledger_db: TestDatabase) -> None:
    add_node("n1")
    assert async_to_sync(sync_to_async(names))() == ["n1"]


def test_fresh_leaves_nothing_behind(ledger_db: TestDatabase) -> None:
    add_node("n1")
    ledger_db.fresh()
    assert names() == []
    with transaction.atomic():
        add_node("n2")
    assert names() == ["n2"]


def test_a_subprocess_works_on_the_same_database(ledger_db: TestDatabase) -> None:
    add_node("n1")
    program = "import django; django.setup(); from nodes.models import Node; Node.objects.update(name='n2')"
    done = forked.run("-c", program, environment=ledger_db.environment)
    assert done.poll() == 0, done.errors
    assert names() == ["n2"]


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_reused_database_is_as_new(ledger_db: TestDatabase) -> None:
    """No row, no page of the tests before, sequences from the start, what migrations left; whoever held on is gone."""
    add_node("n1")
    ledger_db.fresh()
    url, rows = ledger_db.url, migrated()
    add_node("n1")
    with transaction.atomic():
        Permission.objects.get(codename="add_node").delete()
        transaction.set_rollback(True)
    with closing(psycopg.connect(url)) as held:
        held.execute("UPDATE nodes_node SET name = 'n2'")
        ledger_db.fresh()
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")
    assert names() == []
    assert migrated() == rows
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size('nodes_node')")
        assert cursor.fetchone() == (0,)
    add_node("n3")
    assert list(Node.objects.values_list("pk", flat=True)) == [1]


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ALTER TABLE nodes_node ADD COLUMN odd integer", id="a column"),
        pytest.param("CREATE TABLE odd (one integer)", id="a table"),
        pytest.param("CREATE INDEX odd ON nodes_node (name, id)", id="an index"),
        pytest.param("DELETE FROM django_migrations WHERE app = 'nodes'", id="a row that migrations left"),
        pytest.param("ANALYZE nodes_node", id="statistics"),
    ],
)
def test_a_changed_database_is_not_reused(ledger_db: TestDatabase, change: str) -> None:
    add_node("n1")
    with connection.cursor() as cursor:
        cursor.execute(change)
    changed = ledger_db.url
    ledger_db.fresh()
    assert ledger_db.url != changed


def migrated() -> tuple[list[Any], ...]:
    """Rows that migrations leave, and where sequences stand."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sequencename, last_value FROM pg_sequences WHERE last_value IS NOT NULL ORDER BY 1")
        sequences = cursor.fetchall()
    return (
        list(Permission.objects.order_by("pk").values_list()),
        list(MigrationRecorder.Migration.objects.values_list()),
        sequences,
    )


@pytest.mark.django_db
def test_the_usual_database_is_back_afterwards() -> None:
    assert connection.vendor == "sqlite"
    assert "mode=memory" in str(connection.settings_dict["NAME"])
    assert names() == []


def test_postgres_url_is_a_migrated_database_for_subprocesses(postgres_url: str) -> None:
    program = "import django; django.setup(); from nodes.models import Node; print(Node.objects.count())"
    done = forked.run(
        "-c",
        program,
        environment={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
            "GPUPLANE_DATABASE_URL": postgres_url,
        },
    )
    assert done.output == b"0\n", done.errors
