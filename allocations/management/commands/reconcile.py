"""`manage.py reconcile`: one comparison of the ledger with the cluster, and what it did (LEASE-6).

For use after an outage, an install, or in doubt; the beat does the same every 25 seconds. Exit code 1 when the cluster
did not answer.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import msgspec
from django.core.management.base import BaseCommand, CommandError

from allocations.backends import current_backends
from allocations.reconcile import Reconciled, reconcile
from allocations.reconcile.garbage_collection import Collected, collect_garbage
from audit.requeue_notify import announced
from kube.errors import NotConfigured
from storage.clock import database_now

ANNOUNCED_SECONDS = 10.0
"""Announcing goes on beside the command, at most once a second over all processes."""


class Command(BaseCommand):
    """The command."""

    help = "Compare the ledger with the cluster, repair or report every difference, and say what was done."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--format."""
        parser.add_argument("--format", choices=("json", "text"), default="text", help="of the answer (text)")

    def handle(self, *args: object, **options: str) -> None:
        """One run of garbage collection, then one comparison."""
        try:
            backends = current_backends()
        except NotConfigured as error:
            raise CommandError(f"GPUPLANE_KUBECONFIG cannot be used: {error}") from error
        swept = collect_garbage(now=database_now(), backends=backends)
        done = reconcile(backends=backends, now=database_now())
        if not announced(seconds=ANNOUNCED_SECONDS):
            self.stderr.write("pods that wait were not woken: the cluster did not take the announcement")
        if options["format"] == "json":
            answer = {"collected": msgspec.to_builtins(swept), "compared": msgspec.to_builtins(done)}
            self.stdout.write(msgspec.json.encode(answer).decode())
        else:
            for line in report_lines(swept, done):
                self.stdout.write(line)
        if done.problem:
            sys.exit(1)


def report_lines(swept: Collected, done: Reconciled) -> list[str]:
    """What was done, one sentence a line."""
    lines = [f"collected: {count} {name}" for name, count in msgspec.to_builtins(swept).items() if count]
    lines += done.lines
    if done.problem:
        lines.append(done.problem)
    return lines or ["ledger and cluster agree"]
