"""`manage.py bootstrap`: prepares the database and the credentials.

Run by the runner before anything else, and by the chart's init containers. Safe to run again, and on PostgreSQL in
parallel: one works, the others wait for it and find nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from access.errors import BadInput
from gpuplane import credentials
from gpuplane.data_folder import be_writable
from gpuplane.listeners.plan import ListenAddress

LOCK = 0x6770_7570_6C61_6E65
"""The advisory lock: `gpuplane` in ASCII."""


class Command(BaseCommand):
    """Migrate; make the admin, the cluster's service account and credentials.json."""

    help = "Migrate the database, make the first accounts, write credentials.json"

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run. Raises BadSetting."""
        be_writable(settings.GPUPLANE_DATA_DIR)
        with _alone():
            call_command("migrate", interactive=False, verbosity=max(options["verbosity"] - 1, 0), stdout=self.stdout)
            self.stdout.write("the database is up to the models")
            self._credentials()
        self.stdout.write(f"credentials in {credentials.credentials_path()}")

    def _credentials(self) -> None:
        url = ListenAddress("main", settings.GPUPLANE_HOST, settings.GPUPLANE_PORT).url
        password = settings.GPUPLANE_ADMIN_PASSWORD
        try:
            credentials.ensure(url=url, password=password, with_tokens=not password or settings.GPUPLANE_SIMULATE)
        except BadInput as error:
            if not password:
                raise
            raise CommandError(f"GPUPLANE_ADMIN_PASSWORD: {error}") from error


@contextmanager
def _alone() -> Iterator[None]:
    """One bootstrap at a time on PostgreSQL, since Django's migrations take no lock.

    The lock belongs to a transaction of another connection, so it ends with the process and works through PgBouncer.
    That connection is of no pool, whose time-out would hide why none can be made. SQLite is on one machine, where the
    runner starts one bootstrap. Raises CommandError where the database cannot be reached.
    """
    if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
        yield
        return
    guard = connections[DEFAULT_DB_ALIAS].copy()
    guard.settings_dict["OPTIONS"].pop("pool", None)
    try:
        try:
            guard.ensure_connection()
        except OperationalError as error:
            raise CommandError(f"the database of GPUPLANE_DATABASE_URL cannot be used: {str(error).strip()}") from error
        guard.set_autocommit(False)
        with guard.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        yield
    finally:
        guard.close()
