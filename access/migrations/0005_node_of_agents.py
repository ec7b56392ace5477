"""Only an agent's account names a node: of others it meant nothing, and says nothing any more."""

from typing import Any

from django.db import migrations, models


def forgotten(apps: Any, schema_editor: Any) -> None:
    """Nodes of accounts that are no agents'."""
    profiles = apps.get_model("access", "Profile").objects.using(schema_editor.connection.alias)
    profiles.exclude(scope="agent").exclude(node="").update(node="")


class Migration(migrations.Migration):
    dependencies = [("access", "0004_sign_in_counts")]

    operations = [
        migrations.RunPython(forgotten, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.CheckConstraint(
                condition=models.Q(("scope", "agent"), ("node", ""), _connector="OR"),
                name="profile_node_of_agents",
                violation_error_message="only an agent's account names a node",
            ),
        ),
    ]
