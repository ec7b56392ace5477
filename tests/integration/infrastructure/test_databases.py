"""The fixtures of tests/conftest.py do what their docstring promises."""

import os
import subprocess
import sys
from functools import partial

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.utils import timezone

from nodes.models import Node
from tests.databases import TestDatabase


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
    subprocess.run([sys.executable, "-c", program], check=True, env=ledger_db.environment)
    assert names() == ["n2"]


@pytest.mark.django_db
def test_the_usual_database_is_back_afterwards() -> None:
    assert connection.vendor == "sqlite"
    assert "mode=memory" in str(connection.settings_dict["NAME"])
    assert names() == []


def test_postgres_url_is_a_migrated_database_for_subprocesses(postgres_url: str) -> None:
    program = "import django; django.setup(); from nodes.models import Node; print(Node.objects.count())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "gpuplane.settings", "GPUPLANE_DATABASE_URL": postgres_url},
    )
    assert done.stdout == "0\n"
