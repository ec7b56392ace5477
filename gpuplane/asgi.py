"""Where servers find the application: Django is set up, then `gpuplane.application` is loaded.

Named by the settings, and served by `gpuplane.serve`.
"""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
django.setup()

from gpuplane.application import Application  # noqa: E402 - it needs Django's models, which are there once it is set up

application = Application()
