"""A database without space: readiness says so, and REST and sign-in answer with the cause (VIEW-5)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg.errors
import pytest
from django.db import OperationalError, connection
from django.test import Client

from access.choices import Role
from audit.models import Event
from gpuplane import operations
from storage.transactions import SPACE
from tests.factories import PASSWORD, UserFactory
from tests.integration.rest.conftest import NOW, claim_manifest, person


@contextmanager
def full_sqlite() -> Iterator[None]:
    """No page may be added; those that are there are filled up."""
    with connection.cursor() as cursor:
        (pages,) = cursor.execute("PRAGMA page_count").fetchone()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
    for length in (3_000, 300, 1):
        try:
            for _ in range(100_000):
                Event.objects.create(at=NOW, kind="claim.created", actor="a", message="x", data={"x": "x" * length})
        except OperationalError as error:
            assert "full" in str(error)  # noqa: PT017 - which error it is is not what is tested
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def full_postgresql() -> Iterator[None]:
    """Every INSERT and UPDATE fails as psycopg says it: 53100."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith(("INSERT", "UPDATE", "WITH")):
            cause = psycopg.errors.DiskFull("could not extend file: No space left on device")
            raise OperationalError(str(cause)) from cause
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


@pytest.fixture
def full(ledger_db: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(operations, "PROBE_SECONDS", 0.0)
    yield full_sqlite if ledger_db.vendor == "sqlite" else full_postgresql
    SPACE.full = False


def space(client: Client) -> tuple[bool, str]:
    check = client.get("/readyz").json()["checks"]["space"]
    return check["ok"], check["detail"]


def test_rest_says_that_there_is_no_space(full: Any) -> None:
    """VIEW-5 a problem document that names the cause, with a key and without, and nothing is done."""
    ada = person("ada", Role.ADMIN)
    with full():
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = Client(raise_request_exception=False).post(
                "/api/v1/claims/", claim_manifest(), content_type="application/json", headers={**ada.headers, **headers}
            )
            assert (answer.status_code, answer["Content-Type"]) == (507, "application/problem+json")
            assert "no space left" in answer.json()["detail"]
            assert int(answer["Retry-After"]) > 0
        assert ada.get("claims/")[1]["results"] == []
    assert ada.post("claims/", claim_manifest(), headers={"Idempotency-Key": "k"})[0] == 201


def test_sign_in_says_so_on_a_page(full: Any) -> None:
    """VIEW-5 both outcomes are recorded, so neither can be had."""
    user = UserFactory(role=Role.VIEWER)
    client = Client(raise_request_exception=False)
    with full():
        for password in ("wrong", PASSWORD):
            answer = client.post("/sign-in/", {"username": user.username, "password": password})
            assert answer.status_code == 507
            assert "There is no space left" in answer.content.decode()
    assert client.post("/sign-in/", {"username": user.username, "password": PASSWORD}).status_code == 302


def test_readiness_says_so_until_there_is_space_again(full: Any) -> None:
    """VIEW-5 as long as nothing can be written."""
    ada, client = person("ada", Role.ADMIN), Client()
    assert space(client) == (True, "")
    with full():
        ada.send("POST", "claims/", claim_manifest())
        assert space(client) == (False, "the database has no space left")
        assert client.get("/readyz").status_code == 503
    assert space(client) == (True, "")


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_readiness_looks_at_the_disk_too(ledger_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-5 before a write fails."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=operations.LEAST_FREE_BYTES - 1))
    assert space(Client()) == (False, "the disk of the database has less than 64 MiB left")
