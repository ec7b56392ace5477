"""Django app of nodes."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """Nodes and devices."""

    name = "nodes"
    default_auto_field = "django.db.models.BigAutoField"
