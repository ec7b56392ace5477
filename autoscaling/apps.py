"""Django's configuration of the app."""

from django.apps import AppConfig


class AutoscalingConfig(AppConfig):
    """Growth."""

    name = "autoscaling"
    default_auto_field = "django.db.models.BigAutoField"
