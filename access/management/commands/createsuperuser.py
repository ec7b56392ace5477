"""`manage.py createsuperuser`: creates an admin, with an audit event and, unlike Django's, no weak password.

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
from storage.clock import database_now


class Command(BaseCommand):
    """Create an admin."""

    help = "Create an account with the role admin that may use Django's admin"

    def add_arguments(self, parser: CommandParser) -> None:
        """Name, and whether to ask."""
        parser.add_argument("--username", default=os.environ.get("DJANGO_SUPERUSER_USERNAME", ""))
        parser.add_argument("--noinput", "--no-input", action="store_false", dest="interactive")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run."""
        interactive = options["interactive"]
        username = options["username"] or (input("User name: ") if interactive else "")
        password = getpass.getpass() if interactive else os.environ.get("DJANGO_SUPERUSER_PASSWORD", "")
        if interactive and getpass.getpass("Password (again): ") != password:
            raise CommandError("the two passwords differ")
        try:
            services.superuser_create(username=username, password=password, actor=SYSTEM, now=database_now())
        except (BadInput, Conflict) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{username} may sign in")
