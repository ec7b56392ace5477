#!/usr/bin/env python
"""Django's command line for gpuplane."""

import os
import sys


def main() -> None:
    """Run the command named on the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from django.core.management import execute_from_command_line

    from gpuplane.errors import refusals_end_the_program

    with refusals_end_the_program():
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
