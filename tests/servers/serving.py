"""The product's own web process, with passwords hashed as tests hash them (`tests.passwords`): a third of a second of
CPU less for each that is tried.

Started as `python -m tests.servers.serving` in place of `python -m gpuplane.serve`.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """`gpuplane.serve` with the tests' hasher before the product's."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from django.conf import settings

    from gpuplane import serve

    settings.PASSWORD_HASHERS = ["tests.passwords.OneRound", *settings.PASSWORD_HASHERS]
    return serve.main()


if __name__ == "__main__":
    sys.exit(main())
