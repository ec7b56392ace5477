"""Names of the code alone: tables and columns keep theirs, so that older processes may run beside."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("access", "0005_external_identity")]

    operations = [
        migrations.AlterField(
            "signincount",
            "told",
            models.PositiveIntegerField(db_column="told", default=0, help_text="of these, in the audit trail"),
        ),
        migrations.RenameField("signincount", "told", "recorded"),
    ]
