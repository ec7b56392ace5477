"""`manage.py service_token NAME`: a token of a machine account, such as Prometheus's.

Prints the token alone, so that it can be written into a Secret. The account is made where there is none; its earlier
tokens are revoked. The token never expires, unless `--days` is given.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict
from access.token_services import service_token
from storage.clock import database_now


class Command(BaseCommand):
    """The command."""

    help = "Print a fresh token of a machine account, which is made where there is none"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """NAME, and for what."""
        scopes = [scope.value for scope in TokenScope if scope != TokenScope.AGENT]
        parser.add_argument("name", help="name of the account")
        parser.add_argument(
            "--scope", choices=scopes, default=TokenScope.METRICS.value, help="what its token opens; default: metrics"
        )
        parser.add_argument(
            "--role",
            choices=Role.values,
            default=Role.VIEWER.value,
            help="of a new account of scope rest; default: viewer",
        )
        parser.add_argument("--days", type=int, default=None, help="end of the token; default: none")

    def handle(self, *args: object, **options: Any) -> None:
        """Issue it."""
        try:
            self.stdout.write(
                service_token(
                    username=options["name"],
                    scope=TokenScope(options["scope"]),
                    role=Role(options["role"]),
                    days=options["days"],
                    actor=SYSTEM,
                    now=database_now(),
                )
            )
        except (BadInput, Conflict) as error:
            raise CommandError(str(error)) from error
