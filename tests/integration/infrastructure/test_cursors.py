"""The hot path's cursor behaves as Django's own, and PostgreSQL keeps its statements prepared."""

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from nodes.models import Node
from storage.cursors import Query, Statement, Written, hot_cursor, run_together
from tests.databases import TestDatabase
from tests.factories import NodeFactory

STATEMENT = "SELECT name FROM nodes_node WHERE id = %s"


def test_a_hot_cursor_answers_and_is_seen_in_the_query_log(ledger_db: TestDatabase) -> None:
    node = NodeFactory(name="n1")
    with CaptureQueriesContext(connection) as queries, hot_cursor() as cursor:
        cursor.execute(STATEMENT, [node.pk])
        assert cursor.fetchall() == [("n1",)]
    assert len(queries) == 1


def test_placeholders_are_djangos(ledger_db: TestDatabase) -> None:
    """As many as a hold of eight devices has, a percent sign among them, and none."""
    node = NodeFactory(name="n1")
    many = ", ".join(["CAST(%s AS integer)"] * 120)
    with hot_cursor() as cursor:
        cursor.execute(f"SELECT {many}", range(120))
        assert cursor.fetchone() == tuple(range(120))
        cursor.execute("SELECT name FROM nodes_node WHERE id = %s AND name LIKE 'n%%'", [node.pk])
        assert cursor.fetchone() == ("n1",)
        cursor.execute("SELECT name FROM nodes_node WHERE name LIKE 'n%'")
        assert cursor.fetchone() == ("n1",)


def test_its_errors_are_djangos_and_undo_the_transaction(ledger_db: TestDatabase) -> None:
    first, second = NodeFactory(name="n1"), NodeFactory(name="n2")

    @transaction.atomic
    def rename_both() -> None:
        with hot_cursor() as cursor:
            for node in (first, second):
                cursor.execute("UPDATE nodes_node SET name = %s WHERE id = %s", ["other", node.pk])

    with pytest.raises(IntegrityError):
        rename_both()
    assert sorted(Node.objects.values_list("name", flat=True)) == ["n1", "n2"]


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_statement_that_comes_again_and_again_is_prepared(ledger_db: TestDatabase) -> None:
    with transaction.atomic(), hot_cursor() as cursor:  # in one transaction, so that the pool gives one connection
        for number in range(6):
            cursor.execute(STATEMENT, [number])
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %s", ["SELECT name FROM%"])
        assert cursor.fetchone() == (1,)


def test_parts_run_one_after_the_other(ledger_db: TestDatabase) -> None:
    """Rows of queries and what statements wrote, each part seeing those before it, on both databases alike."""
    NodeFactory(name="n1")
    NodeFactory(name="n2")
    rename = "UPDATE nodes_node SET name = %s WHERE name = %s"
    names = Query("SELECT name FROM nodes_node ORDER BY name", [])
    with transaction.atomic():
        found = run_together(
            [
                names,
                [Statement(rename, ["n3", "n1"], "name"), Statement(rename, ["n4", "nobody"])],
                names,
                [Statement(rename, ["n5", "n2"])],
            ]
        )
    assert found == [
        [("n1",), ("n2",)],
        [Written(1, ["n3"]), Written(0, [])],
        [("n2",), ("n3",)],
        found[3],
    ]
    assert found[3][0].rows == 1
    assert sorted(Node.objects.values_list("name", flat=True)) == ["n3", "n5"]


def test_an_error_of_one_part_undoes_all(ledger_db: TestDatabase) -> None:
    """It is Django's, also where PostgreSQL gets the parts together."""
    first, second = NodeFactory(name="n1"), NodeFactory(name="n2")
    rename = "UPDATE nodes_node SET name = %s WHERE id = %s"

    @transaction.atomic
    def rename_both() -> None:
        run_together([[Statement(rename, ["other", node.pk])] for node in (first, second)])

    with pytest.raises(IntegrityError):
        rename_both()
    assert sorted(Node.objects.values_list("name", flat=True)) == ["n1", "n2"]


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_parts_outside_a_transaction_are_one(ledger_db: TestDatabase) -> None:
    """PostgreSQL commits all of them or none."""
    first, second = NodeFactory(name="n1"), NodeFactory(name="n2")
    rename = "UPDATE nodes_node SET name = %s WHERE id = %s"
    with pytest.raises(IntegrityError):
        run_together([[Statement(rename, ["other", node.pk])] for node in (first, second)])
    assert sorted(Node.objects.values_list("name", flat=True)) == ["n1", "n2"]
    run_together([[Statement(rename, [f"new-{node.pk}", node.pk])] for node in (first, second)])
    connection.close()
    assert sorted(Node.objects.values_list("name", flat=True)) == sorted(f"new-{node.pk}" for node in (first, second))
