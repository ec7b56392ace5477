"""Django finds management commands here."""
