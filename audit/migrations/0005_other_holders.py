"""Events name whom they concern in other namespaces in a column of its own, which only those read who see that namespace; those of before as well."""

import re

from django.db import migrations, models

BATCH = 500
_HELD = re.compile(r"is held by (?!somebody else)(.+?)(?=, while .* runs with the device$|$)", re.DOTALL)
_LET_GO = re.compile(r"(?P<before>.*?: )(?P<other>.+) let go of its lease$", re.DOTALL)
# The name is what stands up to the end: the holder of a lease may be any text, with spaces and commas in it.


def move_names(apps, schema_editor):
    """Take holders of leases out of the messages that were written with them."""
    events = apps.get_model("audit", "Event").objects
    concerned = models.Q(message__contains="is held by ") | models.Q(message__endswith=" let go of its lease")
    found = events.filter(concerned, kind__in=["device.taken", "reconcile.difference"]) | events.filter(
        message__contains=" is held by ", kind__startswith="allocation."
    )
    changed = []
    for event in found.order_by("id").iterator(chunk_size=BATCH):
        if _move(event):
            changed.append(event)
        if len(changed) == BATCH:
            events.bulk_update(changed, ["message", "data", "other", "other_namespace"])
            changed.clear()
    events.bulk_update(changed, ["message", "data", "other", "other_namespace"])


def _move(event):
    held, gone = _HELD.search(event.message), _LET_GO.match(event.message)
    if gone is not None:
        event.other = gone["other"][:300]
        event.message = f"{gone['before']}who held its lease outside the ledger let go of it"
    elif held is not None:
        event.other = held[1][:300]
        event.message = f"{event.message[: held.start(1)]}somebody else{event.message[held.end(1) :]}"
    else:
        return False
    if isinstance(event.data, dict):
        event.data.pop("stranger", None)
    namespace, slash, _ = event.other.partition("/")
    event.other_namespace = namespace if slash and len(namespace) <= 63 else ""
    return True


class Migration(migrations.Migration):
    dependencies = [
        ("audit", "0004_tokens"),
    ]

    operations = [
        migrations.AddField(
            model_name="event",
            name="other",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="who else is concerned, such as the holder of a lease; named to those alone who see `other_namespace`",
                max_length=300,
            ),
        ),
        migrations.AddField(
            model_name="event",
            name="other_namespace",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="empty: only those who see all namespaces",
                max_length=63,
            ),
        ),
        migrations.RunPython(move_names, migrations.RunPython.noop, elidable=True),
    ]
