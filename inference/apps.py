"""Django's configuration of the app."""

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    """Model slots."""

    name = "inference"
    default_auto_field = "django.db.models.BigAutoField"
