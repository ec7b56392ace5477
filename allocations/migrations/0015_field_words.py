"""Names of the code alone: tables and columns keep theirs, so that older processes may run beside."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("allocations", "0014_queue_fence")]

    operations = [
        migrations.AlterModelTable("queueturn", "allocations_queueturn"),
        migrations.RenameModel("QueueTurn", "QueueFence"),
        migrations.AlterField(
            "advisedpod", "asks", models.JSONField(db_column="asks", help_text="allocations.pod_request.PodRequest")
        ),
        migrations.RenameField("advisedpod", "asks", "request"),
        migrations.AlterField(
            "podrefusal",
            "told",
            models.JSONField(blank=True, db_column="told", default=list, help_text="of the pod's last event"),
        ),
        migrations.RenameField("podrefusal", "told", "event_reasons"),
    ]
