from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('allocations', '0003_refusal_told'),
    ]

    operations = [
        migrations.AddField(
            model_name='allocation',
            name='bind_attempt',
            field=models.PositiveIntegerField(db_default=0, default=0, help_text='raised by whoever takes the reservation up; only the holder of the highest may send'),
        ),
    ]
