"""Counts of attempts at passwords, and the accounts that bootstrap has made: never again on a database that has accounts."""

from typing import Any

import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


def made_already(apps: Any, schema_editor: Any) -> None:
    """A database with accounts has been through its first start: those missing from it were deleted on purpose."""
    alias = schema_editor.connection.alias
    app, name = settings.AUTH_USER_MODEL.split(".")
    if not apps.get_model(app, name).objects.using(alias).exists():
        return
    first = apps.get_model("access", "FirstAccount").objects.using(alias)
    for username in ("admin", "cluster"):
        first.get_or_create(username=username, defaults={"made_at": django.utils.timezone.now()})


class Migration(migrations.Migration):
    dependencies = [("access", "0003_scopes"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="FirstAccount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("username", models.CharField(max_length=150, unique=True)),
                ("made_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="SignInCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("address", "failures from an address"),
                            ("name", "failures of a name"),
                            ("pair", "failures of a name from an address"),
                            ("known", "an address from which a name signed in"),
                            ("events", "events of failures that were written"),
                        ],
                        max_length=8,
                    ),
                ),
                ("key", models.CharField(help_text="SHA-256 of what is counted", max_length=64)),
                ("name", models.CharField(blank=True, default="", max_length=150)),
                ("address", models.CharField(blank=True, default="", max_length=64)),
                (
                    "tries",
                    models.PositiveIntegerField(
                        default=0, help_text="attempts, counted before the password is looked at"
                    ),
                ),
                ("failures", models.PositiveIntegerField(default=0, help_text="of a pair: wrong passwords")),
                (
                    "told",
                    models.PositiveIntegerField(default=0, help_text="how many of these the audit trail was told of"),
                ),
                (
                    "since",
                    models.DateTimeField(help_text="when the window began; of a known address, the last sign-in"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["since"], name="sign_in_count_since")],
                "constraints": [models.UniqueConstraint(fields=("scope", "key"), name="sign_in_count_once")],
            },
        ),
        migrations.RunPython(made_already, migrations.RunPython.noop),
    ]
