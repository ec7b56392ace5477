"""Bounds of labels' values by a NodePool; empty until its watch reads it again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("autoscaling", "0003_excluded_values")]

    operations = [
        migrations.AddField(
            "pool",
            "bounds",
            models.JSONField(
                blank=True,
                default=dict,
                help_text="label → least and most, where any value between is allowed",
                null=True,
            ),
        ),
    ]
