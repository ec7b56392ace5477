"""Django's handle on the composition root (management commands live here)."""

from django.apps import AppConfig


class GpuplaneConfig(AppConfig):
    """Composition root."""

    name = "gpuplane"
