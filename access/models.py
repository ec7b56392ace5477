"""Roles of users, teams and their namespaces, answers kept for idempotency keys, and counts of attempts at passwords."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from access.choices import Role, SignInScope


class Profile(models.Model):
    """What a user may do. `service` marks machine accounts (the cluster's scheduler and webhooks)."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="profile")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    service = models.BooleanField(default=False)
    node = models.CharField(
        max_length=253, blank=True, default="", help_text="of an agent's account: the one node that it speaks for"
    )
    theme = models.CharField(max_length=8, blank=True, default="", help_text="light, dark, or empty for the system's")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(role__in=Role.values), name="profile_role_known")]

    def __str__(self) -> str:
        """User and role."""
        return f"{self.user_id}: {self.role}"


class Team(models.Model):
    """People who share namespaces."""

    name = models.CharField(max_length=63, unique=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="teams", blank=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        """The name."""
        return self.name


class TeamNamespace(models.Model):
    """A namespace that a team may see and write in."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="namespaces")
    namespace = models.CharField(max_length=63)

    class Meta:
        ordering = ("namespace",)
        constraints = [models.UniqueConstraint(fields=["team", "namespace"], name="namespace_once_a_team")]

    def __str__(self) -> str:
        """The namespace."""
        return self.namespace


class IdempotencyRecord(models.Model):
    """The answer to a write that carried an `Idempotency-Key`, given again to a repeat."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=1000)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the body")
    status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="null while the first is running")
    content_type = models.CharField(max_length=100, blank=True, default="")
    body = models.BinaryField(default=b"")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once_a_user")]
        indexes = [models.Index(fields=["created_at"], name="idempotency_created")]

    def __str__(self) -> str:
        """The key."""
        return self.key


class FirstAccount(models.Model):
    """An account that `manage.py bootstrap` has made, once: what became of it later is not undone by a restart."""

    username = models.CharField(max_length=150, unique=True)
    made_at = models.DateTimeField()

    def __str__(self) -> str:
        """The name."""
        return self.username


class SignInCount(models.Model):
    """What `access.attempts` counts within a window. `key` is a digest; `name` and `address` are for the audit trail."""

    scope = models.CharField(max_length=8, choices=SignInScope.choices)
    key = models.CharField(max_length=64, help_text="SHA-256 of what is counted")
    name = models.CharField(max_length=150, blank=True, default="")
    address = models.CharField(max_length=64, blank=True, default="")
    tries = models.PositiveIntegerField(default=0, help_text="attempts, counted before the password is looked at")
    failures = models.PositiveIntegerField(default=0, help_text="of a pair: wrong passwords")
    told = models.PositiveIntegerField(default=0, help_text="how many of these the audit trail was told of")
    since = models.DateTimeField(help_text="when the window began; of a known address, the last sign-in")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["scope", "key"], name="sign_in_count_once")]
        indexes = [models.Index(fields=["since"], name="sign_in_count_since")]

    def __str__(self) -> str:
        """What is counted."""
        return f"{self.scope} {self.name} {self.address}"
