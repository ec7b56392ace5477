"""What was committed reaches the database file beside the requests, while others read and write."""

import shutil
import sqlite3

import pytest

from claims.models import GpuClaim
from gpuplane.start.checkpoints import checkpoint
from tests.databases import TestDatabase
from tests.factories import GpuClaimFactory


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_the_log_is_brought_into_the_database_file(ledger_db: TestDatabase) -> None:
    GpuClaimFactory(name="written")

    checkpoint()

    alone = ledger_db.data_dir / "without-log.sqlite3"
    shutil.copyfile(ledger_db.data_dir / "gpuplane.sqlite3", alone)
    with sqlite3.connect(alone) as file:
        assert file.execute("SELECT name FROM claims_gpuclaim").fetchall() == [("written",)]
    file.close()


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_a_checkpoint_leaves_an_open_transaction_alone(ledger_db: TestDatabase) -> None:
    GpuClaimFactory(name="before")
    path = ledger_db.data_dir / "gpuplane.sqlite3"
    writer = sqlite3.connect(path, isolation_level=None, timeout=0)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE claims_gpuclaim SET name = 'after'")

    checkpoint()
    assert list(GpuClaim.objects.values_list("name", flat=True)) == ["before"]

    writer.execute("COMMIT")
    writer.close()
    checkpoint()
    assert list(GpuClaim.objects.values_list("name", flat=True)) == ["after"]
