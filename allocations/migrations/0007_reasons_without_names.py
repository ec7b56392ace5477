"""Reasons of allocations that ended since somebody else has a lease name that one no more, as their events do not: whoever sees the allocation need not see them."""

import re

from django.db import migrations

BATCH = 500
_HELD = re.compile(r"is held by (?!somebody else$).+", re.DOTALL)


def take_names_out(apps, schema_editor):
    """Of those written before."""
    rows = apps.get_model("allocations", "Allocation").objects.filter(reason__contains="is held by ")
    changed = []
    for row in rows.only("pk", "reason").order_by("pk").iterator(chunk_size=BATCH):
        row.reason, count = _HELD.subn("is held by somebody else", row.reason)
        if count:
            changed.append(row)
    rows.model.objects.bulk_update(changed, ["reason"], batch_size=BATCH)


class Migration(migrations.Migration):
    dependencies = [
        ("allocations", "0006_attempts_and_waiting_pods"),
    ]

    operations = [
        migrations.RunPython(take_names_out, migrations.RunPython.noop, elidable=True),
    ]
