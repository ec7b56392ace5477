from django.db import migrations, models


class Migration(migrations.Migration):
    """The PCI address of a device, empty where no inventory told it."""

    dependencies = [("nodes", "0006_device_kept_and_conflict")]

    operations = [
        migrations.AddField(
            model_name="device",
            name="bus_id",
            field=models.CharField(blank=True, default="", help_text="PCI address", max_length=16),
        ),
    ]
