"""Profiles of accounts, identities at providers, teams, uses of tokens, idempotency records, first accounts, counts of
sign-in attempts.
"""

from django.conf import settings
from django.db import models
from django.db.models import Q

from access.choices import Role, SignInScope, TokenScope


class Profile(models.Model):
    """What a user may do. `service`: a machine account, whose tokens open what `scope` says and nothing else."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="profile")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    service = models.BooleanField(default=False)
    node = models.CharField(
        max_length=253, blank=True, default="", help_text="of an agent's account: the one node that it speaks for"
    )
    scope = models.CharField(
        max_length=16,
        choices=TokenScope.choices,
        default=TokenScope.REST,
        db_default=TokenScope.REST,
        help_text="what the tokens of the account open; of a person: rest",
    )
    theme = models.CharField(max_length=8, blank=True, default="", help_text="light, dark, or empty for the system's")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(role__in=Role.values), name="profile_role_known"),
            models.CheckConstraint(condition=Q(scope__in=TokenScope.values), name="profile_scope_known"),
            models.CheckConstraint(
                condition=Q(scope=TokenScope.REST) | Q(service=True),
                name="profile_scope_of_machines",
                violation_error_message="only machine accounts have another scope than rest",
            ),
            models.CheckConstraint(
                condition=~Q(scope=TokenScope.AGENT) | ~Q(node=""),
                name="profile_agent_has_node",
                violation_error_message="an agent's account names its node",
            ),
        ]

    def __str__(self) -> str:
        """User and role."""
        return f"{self.user_id}: {self.role}"


class TokenUse(models.Model):
    """When a token was last used, to the minute; no row: never.

    Without a foreign key in the database, since a token may be revoked while its use is being written.
    """

    token = models.OneToOneField(
        "knox.AuthToken",
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="use",
        db_constraint=False,
        swappable=False,
    )
    last_used_at = models.DateTimeField()

    def __str__(self) -> str:
        """The beginning of the token's digest."""
        return str(self.pk)[:8]


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


class ExternalIdentity(models.Model):
    """Who somebody is at a provider of sign-in: the issuer's own key of a person, which no other person gets."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=1024)
    subject = models.CharField(max_length=255)
    since = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="external_identity_once")]

    def __str__(self) -> str:
        """Subject and issuer."""
        return f"{self.subject} of {self.issuer}"


class IdempotencyRecord(models.Model):
    """The response to a write with an `Idempotency-Key`, kept for repeats."""

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
    """An account that `manage.py bootstrap` has created: it is not created again if it was deleted."""

    username = models.CharField(max_length=150, unique=True)
    made_at = models.DateTimeField()

    def __str__(self) -> str:
        """The name."""
        return self.username


class SignInCount(models.Model):
    """A count of `access.attempts` within a window. `name` and `address` are for the audit trail."""

    scope = models.CharField(max_length=8, choices=SignInScope.choices)
    key = models.CharField(max_length=64, help_text="SHA-256 of what is counted")
    name = models.CharField(max_length=150, blank=True, default="")
    address = models.CharField(max_length=64, blank=True, default="")
    tries = models.PositiveIntegerField(default=0, help_text="attempts, counted before the password is looked at")
    failures = models.PositiveIntegerField(default=0, help_text="of a pair: wrong passwords")
    recorded = models.PositiveIntegerField(default=0, db_column="told", help_text="of these, in the audit trail")
    since = models.DateTimeField(help_text="when the window began; of a known address, the last sign-in")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["scope", "key"], name="sign_in_count_once")]
        indexes = [models.Index(fields=["since"], name="sign_in_count_since")]

    def __str__(self) -> str:
        """What is counted."""
        return f"{self.scope} {self.name} {self.address}"
