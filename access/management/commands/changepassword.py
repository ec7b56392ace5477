"""`manage.py changepassword`: sets an account's password, with an audit event, unlike Django's."""

from __future__ import annotations

import getpass
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from access import services
from access.actors import SYSTEM
from access.errors import BadInput
from storage.clock import database_now


class Command(BaseCommand):
    """Set a password."""

    help = "Set another password for an account; it asks for it twice"

    def add_arguments(self, parser: CommandParser) -> None:
        """The account."""
        parser.add_argument("username")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run."""
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"there is no account {options['username']}")
        password = getpass.getpass()
        if getpass.getpass("Password (again): ") != password:
            raise CommandError("the two passwords differ")
        try:
            services.password_set(user=user, password=password, actor=SYSTEM, now=database_now())
        except BadInput as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"password of {user.get_username()} changed")
