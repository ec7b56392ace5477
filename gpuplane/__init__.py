"""Composition root: settings, URLs, doors, Celery, error table. Imports everything; nothing imports it."""
