"""What a node claims and another has, and health that changes by turns."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0007_device_bus_id"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="disputed",
            field=models.TextField(
                blank=True, db_default="", default="", help_text="JSON of what it claims and other nodes have (`nodes.disputes`)"
            ),
        ),
        migrations.AddField(
            model_name="device",
            name="health_said",
            field=models.CharField(
                blank=True,
                help_text="while its health flaps: what was said last, empty where well; null: what was said counts",
                max_length=200,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="device",
            name="flaps",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="changes of health that came one soon after the other (`nodes.flapping`)",
            ),
        ),
        migrations.AddField(
            model_name="device",
            name="flaps_since",
            field=models.DateTimeField(blank=True, help_text="the first of them", null=True),
        ),
        migrations.AddField(
            model_name="device",
            name="flapped_at",
            field=models.DateTimeField(blank=True, help_text="the last of them", null=True),
        ),
        migrations.AddIndex(
            model_name="device",
            index=models.Index(
                condition=models.Q(("health_said__isnull", False)), fields=["flapped_at"], name="device_flapping"
            ),
        ),
    ]
