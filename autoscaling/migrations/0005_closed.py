"""Why Karpenter makes no node of a NodePool for pods; empty until its watch reads it again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("autoscaling", "0004_bounds")]

    operations = [
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
