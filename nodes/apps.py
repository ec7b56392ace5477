"""Django's handle on the room."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """What exists."""

    name = "nodes"
    default_auto_field = "django.db.models.BigAutoField"
