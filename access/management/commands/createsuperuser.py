"""`manage.py createsuperuser`: an admin, by hand. In place of Django's, which lets a weak password pass.

Its way back in where the first account was shut or deleted: bootstrap never reopens it. The account leaves an audit event.
Without a terminal (`--noinput`) the password is that of `DJANGO_SUPERUSER_PASSWORD`.
"""

from __future__ import annotations

import getpass
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from access import services
from access.actors import SYSTEM
from access.errors import BadInput, Conflict
from audit.clock import database_now


class Command(BaseCommand):
    """Create an admin."""

    help = "Create an account with the role admin that may use Django's admin"

    def add_arguments(self, parser: CommandParser) -> None:
        """Name, and whether to ask."""
        parser.add_argument("--username", default=os.environ.get("DJANGO_SUPERUSER_USERNAME", ""))
        parser.add_argument("--noinput", "--no-input", action="store_false", dest="interactive")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run."""
        asks = options["interactive"]
        username = options["username"] or (input("User name: ") if asks else "")
        password = getpass.getpass() if asks else os.environ.get("DJANGO_SUPERUSER_PASSWORD", "")
        if asks and getpass.getpass("Password (again): ") != password:
            raise CommandError("the two passwords differ")
        try:
            services.superuser_create(username=username, password=password, actor=SYSTEM, now=database_now())
        except (BadInput, Conflict) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{username} may sign in")
