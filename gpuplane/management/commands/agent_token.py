"""`manage.py agent_token NODE`: a token for the agent of one node, where agents do not sign in by ServiceAccount.

Prints the token alone, so that it can be written into a file. The node's earlier tokens are revoked.
"""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError

from access.actors import SYSTEM
from access.errors import BadInput, Conflict
from access.token_services import agent_token
from storage.clock import database_now


class Command(BaseCommand):
    """The command."""

    help = "Print a fresh token by which the agent of one node may speak for it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """NODE."""
        parser.add_argument("node", help="name of the node")

    def handle(self, *args: object, **options: str) -> None:
        """Issue it."""
        try:
            self.stdout.write(agent_token(node=options["node"], actor=SYSTEM, now=database_now()))
        except (BadInput, Conflict) as error:
            raise CommandError(str(error)) from error
