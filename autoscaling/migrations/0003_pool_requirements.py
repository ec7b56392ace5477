"""What else a NodePool says of its nodes' labels, and why it makes none; empty until its watch reads it again."""

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
        migrations.AddField(
            "pool",
            "closed",
            models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="why Karpenter makes no node of it for pods",
                max_length=300,
            ),
        ),
    ]
