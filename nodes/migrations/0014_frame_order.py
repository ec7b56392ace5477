"""What orders agents' frames (`nodes.frame_order`); rows that older processes write have none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0013_field_words")]

    operations = [
        migrations.AddField(
            "node",
            "frame_boot",
            models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="of the newest frame of its agent that changed the database (`nodes.frame_order`)",
                max_length=64,
            ),
        ),
        migrations.AddField(
            "node", "frame_seq", models.BigIntegerField(db_default=-1, default=-1, help_text="its number")
        ),
        migrations.AddField(
            "node",
            "frame_stored_at",
            models.DateTimeField(blank=True, help_text="null: there was none", null=True),
        ),
        migrations.AddField(
            "node",
            "frame_time",
            models.FloatField(db_default=0.0, default=0.0, help_text="its time, in seconds since 1970"),
        ),
    ]
