"""What the accounts of an installation before scopes become."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

BEFORE = [("access", "0002_profile_node"), ("audit", "0003_corrected"), ("knox", "0009_extend_authtoken_field")]
AFTER = [("access", "0003_scopes")]
ACCOUNTS = {
    # name: role, whether a machine's, node, scope that it gets
    "ada": ("admin", False, "", "rest"),
    "vera": ("viewer", False, "", "rest"),
    "cluster": ("operator", True, "", "extender"),
    "prometheus": ("viewer", True, "", "metrics"),
    "scraper-2": ("operator", True, "", "metrics"),
    "somebody": ("viewer", True, "", "metrics"),
    "gpu-scheduler": ("operator", True, "", "extender"),
    "webhooks": ("operator", True, "", "webhooks"),
    "inventory-sync": ("operator", True, "", "inventory"),
    "ci": ("operator", True, "", "rest"),
    "terraform": ("admin", True, "", "rest"),
    "agent@n1": ("viewer", True, "n1", "agent"),
}


@pytest.mark.usefixtures("ledger_db")
def test_each_account_gets_what_it_implies() -> None:
    """VIEW-6 machines one scope, by name or role; people's tokens an end; machines' none."""
    executor = MigrationExecutor(connection)
    executor.migrate(BEFORE)
    old = executor.loader.project_state(BEFORE).apps
    user_model, profiles, tokens = (
        old.get_model(*name) for name in (("auth", "User"), ("access", "Profile"), ("knox", "AuthToken"))
    )
    soon = timezone.now() + timedelta(days=1)
    for name, (role, service, node, _) in ACCOUNTS.items():
        user = user_model.objects.create(username=name)
        profiles.objects.create(user=user, role=role, service=service, node=node)
        tokens.objects.create(user=user, digest=f"{name}-1", token_key="a")
        tokens.objects.create(user=user, digest=f"{name}-2", token_key="b", expiry=soon)
    user_model.objects.create(username="without-profile")

    executor = MigrationExecutor(connection)
    executor.migrate(AFTER)
    new = executor.loader.project_state(AFTER).apps
    found = dict(new.get_model("access", "Profile").objects.values_list("user__username", "scope"))
    assert found == {name: scope for name, (*_, scope) in ACCOUNTS.items()}
    ends = dict(new.get_model("knox", "AuthToken").objects.values_list("digest", "expiry"))
    for name, (_, service, _, _) in ACCOUNTS.items():
        assert ends[f"{name}-2"] == soon
        if service:
            assert ends[f"{name}-1"] is None
        else:
            assert timedelta(days=89) < ends[f"{name}-1"] - timezone.now() < timedelta(days=91)

    # a version before this one, still running, makes accounts without a scope
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO auth_user (username, password, is_superuser, is_staff, is_active, date_joined, first_name,"
            " last_name, email) VALUES (%s, '!', %s, %s, %s, %s, '', '', '')",
            ["agent@n2", False, False, True, timezone.now()],
        )
        cursor.execute(
            "INSERT INTO access_profile (user_id, role, service, theme, node) SELECT id, 'viewer', %s, '', 'n2' FROM"
            " auth_user WHERE username = 'agent@n2'",
            [True],
        )

    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    from django.contrib.auth.models import User

    from access.selectors import actor_of

    made = actor_of(User.objects.get(username="agent@n2"))
    assert (made.scope, made.node) == ("agent", "n2")
