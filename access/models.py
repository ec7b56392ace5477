"""Roles of users, teams and their namespaces, and answers kept for idempotency keys."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from access.choices import Role


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
