"""One scope for each machine account, ends for people's tokens, and when tokens were last used.

What an account's tokens open from now on: of a node's agent `agent`; of `cluster`, which `manage.py bootstrap` made,
`extender`; of another machine account what its name says (the first word of NAMED that it contains), else `metrics`
for a viewer (as `manage.py service_token` made them, for Prometheus), `rest` for operators and admins. A person's tokens that had no end get one 90 days from now.
"""

from datetime import timedelta

import django.db.models.deletion
from django.db import migrations, models
from django.utils import timezone

NAMED = (
    ("webhook", "webhooks"),
    ("apiserver", "webhooks"),
    ("inventory", "inventory"),
    ("prometheus", "metrics"),
    ("metrics", "metrics"),
    ("scrape", "metrics"),
    ("scheduler", "extender"),
    ("extender", "extender"),
)
DAYS = 90


def scope_of(username, role, node):
    """The scope that an account of before implies."""
    if node:
        return "agent"
    if username == "cluster":
        return "extender"
    lowered = username.lower()
    for word, scope in NAMED:
        if word in lowered:
            return scope
    return "metrics" if role == "viewer" else "rest"


def forwards(apps, schema_editor):
    profiles = apps.get_model("access", "Profile").objects.filter(service=True).select_related("user")
    for profile in profiles:
        profile.scope = scope_of(profile.user.username, profile.role, profile.node)
        profile.save(update_fields=["scope"])
    machines = profiles.values("user_id")
    tokens = apps.get_model("knox", "AuthToken").objects.filter(expiry=None)
    tokens.exclude(user_id__in=machines).update(expiry=timezone.now() + timedelta(days=DAYS))


class Migration(migrations.Migration):

    dependencies = [
        ("access", "0002_profile_node"),
        ("knox", "0009_extend_authtoken_field"),
    ]

    operations = [
        migrations.AddField(
            model_name="profile",
            name="scope",
            field=models.CharField(choices=[("rest", "REST as a user"), ("metrics", "metrics"), ("extender", "the scheduler's paths"), ("webhooks", "the webhooks' paths"), ("inventory", "inventories of nodes"), ("agent", "agent of one node")], db_default="rest", default="rest", help_text="what the tokens of the account open; of a person: rest", max_length=16),
        ),
        migrations.CreateModel(
            name="TokenUse",
            fields=[
                ("token", models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="use", serialize=False, swappable=False, to="knox.authtoken")),
                ("last_used_at", models.DateTimeField()),
            ],
        ),
        migrations.RunPython(forwards, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.CheckConstraint(condition=models.Q(("scope__in", ["rest", "metrics", "extender", "webhooks", "inventory", "agent"])), name="profile_scope_known"),
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.CheckConstraint(condition=models.Q(("scope", "rest"), ("service", True), _connector="OR"), name="profile_scope_of_machines", violation_error_message="only machine accounts have another scope than rest"),
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.CheckConstraint(condition=models.Q(models.Q(("scope", "agent"), _negated=True), models.Q(("node", ""), _negated=True), _connector="OR"), name="profile_agent_has_node", violation_error_message="an agent's account names its node"),
        ),
    ]
