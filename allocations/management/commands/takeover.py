"""`manage.py takeover --check`: which steps of taking over a cluster hold, and what is missing for the others (DEV-11).

Without `--check` it prints the steps. Exit code 0 where all hold, 1 where one does not, or the cluster did not answer.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator

import msgspec
from django.core.management.base import BaseCommand, CommandError

from allocations.backends import current_backends
from allocations.takeover import TITLES, Step, takeover_steps
from kube.errors import KubeError, NotConfigured


class Command(BaseCommand):
    """The command."""

    help = "Taking over a cluster in which others hand out devices: the steps, and which of them hold."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--check, --format."""
        parser.add_argument("--check", action="store_true", help="look at the cluster and say which steps hold")
        parser.add_argument("--format", choices=("json", "text"), default="text", help="of the answer (text)")

    def handle(self, *args: object, **options: object) -> None:
        """Print steps, or verdicts."""
        if not options["check"]:
            for number, (name, title) in enumerate(TITLES.items(), 1):
                self.stdout.write(f"{number}. {name}: {title}")
            self.stdout.write("docs/takeover.md says how; takeover --check says which hold")
            return
        steps = self._steps()
        if options["format"] == "json":
            answer = [{**msgspec.to_builtins(step), "holds": step.holds} for step in steps]
            self.stdout.write(msgspec.json.encode(answer).decode())
        else:
            for line in step_lines(steps):
                self.stdout.write(line)
        if not all(step.holds for step in steps):
            sys.exit(1)

    def _steps(self) -> list[Step]:
        try:
            cluster = current_backends().cluster
        except NotConfigured as error:
            raise CommandError(f"GPUPLANE_KUBECONFIG cannot be used: {error}") from error
        if cluster is None:
            raise CommandError("GPUPLANE_KUBECONFIG is not set: there is no cluster to take over")
        try:
            return takeover_steps(cluster)
        except KubeError as error:
            raise CommandError(f"the API server does not answer: {error}") from error


def step_lines(steps: Iterable[Step]) -> Iterator[str]:
    """One line a step; below it what is missing, and what to do."""
    for number, step in enumerate(steps, 1):
        yield f"{number}. {'holds  ' if step.holds else 'MISSING'}  {step.title}"
        for one in step.missing:
            yield f"            {one}"
        if not step.holds:
            yield f"            → {step.advice}"
