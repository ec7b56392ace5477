"""The composition root as a Django app, which has the management commands."""

from django.apps import AppConfig


class GpuplaneConfig(AppConfig):
    """Composition root."""

    name = "gpuplane"

    def ready(self) -> None:
        """Make this Celery application the one that `shared_task` sends to, in every process."""
        from gpuplane import celery  # noqa: F401 - imported for its effect
