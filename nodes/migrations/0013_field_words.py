"""Names of the code alone: tables and columns keep theirs, so that older processes may run beside."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0012_kept_for_several")]

    operations = [
        migrations.AlterField(
            "preemptionreservation",
            "told",
            models.BooleanField(db_column="told", default=False, help_text="to kube-scheduler"),
        ),
        migrations.RenameField("preemptionreservation", "told", "victims_sent"),
        migrations.AlterField(
            "preemptionreservation",
            "node",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="preemption_reservations", to="nodes.node"
            ),
        ),
        migrations.AlterField(
            "node",
            "disputed",
            models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="JSON of what it claims and other nodes have (`nodes.disputed_devices`)",
            ),
        ),
    ]
