"""Names of the code alone: tables and columns keep theirs, so that older processes may run beside."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("autoscaling", "0001_initial")]

    operations = [
        migrations.AlterField(
            "podgrowth",
            "told",
            models.CharField(blank=True, db_column="told", default="", help_text="of its last event", max_length=500),
        ),
        migrations.RenameField("podgrowth", "told", "event_text"),
    ]
