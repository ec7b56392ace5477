"""Values of labels that a NodePool excludes; empty until its watch reads it again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("autoscaling", "0002_field_words")]

    operations = [
        migrations.AlterField(
            "pool",
            "choices",
            models.JSONField(default=dict, help_text="label → values that its requirements allow, empty: any"),
        ),
        migrations.AddField(
            "pool",
            "excluded",
            models.JSONField(
                blank=True,
                default=dict,
                help_text="label → values that are excluded, where any other is allowed",
                null=True,
            ),
        ),
    ]
