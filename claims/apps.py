"""Django's configuration of the app."""

from django.apps import AppConfig


class ClaimsConfig(AppConfig):
    """Claims."""

    name = "claims"
    default_auto_field = "django.db.models.BigAutoField"
