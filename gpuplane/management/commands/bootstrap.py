"""`manage.py bootstrap`: makes the database and the credentials ready for the processes to start.

Run by the runner before anything else, and by the chart's init container. Safe to run again, and beside a
twin: migrations take the database's lock, accounts are unique.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from gpuplane import credentials
from gpuplane.doors.plan import Door


class Command(BaseCommand):
    """Migrate; make the admin, the cluster's service account and credentials.json."""

    help = "Migrate the database, make the first accounts, write credentials.json"

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run."""
        call_command("migrate", interactive=False, verbosity=max(options["verbosity"] - 1, 0), stdout=self.stdout)
        self.stdout.write("the database is up to the models")
        url = Door("main", settings.GPUPLANE_HOST, settings.GPUPLANE_PORT).url
        credentials.ensure(url=url)
        self.stdout.write(f"credentials in {credentials.credentials_path()}")
