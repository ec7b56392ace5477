"""`manage.py estimate FILE`: the memory that a GGUF file takes on each GPU, with its parts (SLOT-6).

Reads the header alone, and neither database nor cluster. A file that cannot be read ends with a sentence and exit
code 2.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from allocations.engine.gguf import Estimate, GgufInvalid, KvType, estimate, projectors
from allocations.engine.reasons import memory_text
from allocations.gguf_files import header_of

CONTEXT_MOST = 1 << 31
PARALLEL_MOST = 65_536
GPUS_MOST = 1_024
KV_TYPES = (KvType.F16, KvType.Q8_0, KvType.Q4_0)


class Command(BaseCommand):
    """The command."""

    help = "Estimate the memory of a GGUF file by number of GPUs, from its header."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """FILE and what it is run with."""
        parser.add_argument("file", metavar="FILE", help="the model, a GGUF file, or its first megabytes")
        parser.add_argument(
            "--context",
            type=_Whole(CONTEXT_MOST),
            default=0,
            metavar="N",
            help="tokens of one request (what the file says)",
        )
        parser.add_argument(
            "--parallel", type=_Whole(PARALLEL_MOST), default=4, metavar="N", help="requests at once (4)"
        )
        parser.add_argument(
            "--kv", choices=[kind.value for kind in KV_TYPES], default=KvType.F16.value, help="keys and values (f16)"
        )
        parser.add_argument("--gpus", type=_Whole(GPUS_MOST), default=1, metavar="N", help="number of GPUs (1)")
        parser.add_argument("--mmproj", metavar="FILE", help="the file of its projector")
        parser.add_argument("--format", choices=("json", "table"), default="table", help="of the answer (table)")

    def handle(self, *args: object, **options: Any) -> None:
        """Read, estimate, print."""
        try:
            header = header_of(Path(options["file"]))
            beside = projectors(header_of(Path(options["mmproj"]))) if options["mmproj"] else 0
            found = _estimate(options["file"], header, beside, options)
        except GgufInvalid as error:
            raise CommandError(str(error), returncode=2) from error
        if options["format"] == "json":
            self.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        else:
            self.stdout.write(_table(found), ending="")


class _Whole:
    """A whole number from 1 to `most`."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from error
        if not 1 <= number <= self.most:
            raise ArgumentTypeError(f"must be from 1 to {self.most}")
        return number


def _estimate(name: str, header: Any, beside: int, options: dict[str, Any]) -> Estimate:
    try:
        return estimate(
            header,
            context=options["context"],
            parallel=options["parallel"],
            kv=KvType(options["kv"]),
            gpus=options["gpus"],
            mmproj=beside,
        )
    except GgufInvalid as error:
        raise GgufInvalid(f"{name}: {error}", field=error.field, rule=error.rule) from error


def _table(found: Estimate) -> str:
    """Aligned text."""
    rows = [("total", found.total)]
    rows += [(f"GPU {number}", size) for number, size in enumerate(found.per_gpu)]
    rows += [(name.replace("_", " "), size) for name, size in msgspec.structs.asdict(found.parts).items()]
    width = max(len(name) for name, _ in rows)
    digits = max(len(str(size)) for _, size in rows)
    lines = [f"{name.ljust(width)}  {str(size).rjust(digits)}  {memory_text(size)}" for name, size in rows]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines) + "\n"
