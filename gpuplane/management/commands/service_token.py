"""`manage.py service_token NAME`: a token of a service account, for what asks REST in nobody's name, such as Prometheus.

Prints the token, and nothing else, so that it can be written into a Secret. The account is made where there is none; the tokens that it had
before are revoked.
"""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError

from access.actors import SYSTEM
from access.errors import BadInput, Conflict
from access.services import service_token
from audit.clock import database_now


class Command(BaseCommand):
    """The command."""

    help = "Print a fresh token of a service account, which is made where there is none"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """NAME."""
        parser.add_argument("name", help="name of the account")

    def handle(self, *args: object, **options: str) -> None:
        """Issue it."""
        try:
            self.stdout.write(service_token(username=options["name"], actor=SYSTEM, now=database_now()))
        except (BadInput, Conflict) as error:
            raise CommandError(str(error)) from error
