"""Django's handle on the room."""

from django.apps import AppConfig


class ClaimsConfig(AppConfig):
    """What is asked."""

    name = "claims"
    default_auto_field = "django.db.models.BigAutoField"
