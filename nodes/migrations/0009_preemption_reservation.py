"""The model has another name. Its table keeps its own: processes of the release before read and write it while a chart is upgraded."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("nodes", "0008_flapping_and_disputed")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("MakingWay", "PreemptionReservation"),
                migrations.AlterModelTable("preemptionreservation", "nodes_makingway"),
            ]
        )
    ]
