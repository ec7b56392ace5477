"""The credentials file, by which people and clusters sign in after `make run` (mode 0600, in the data folder).

Written by `manage.py bootstrap`. Invariants: the first accounts are made once in the life of a database
(`FirstAccount`). A later start changes none of them: one that was closed, deleted, or given another role or password
since stays so, and gets no token. The first password is written here and shown nowhere else; once another one is set it
leaves the file. A token that no longer works is issued again, for an account that is open; others stay as they are.

Where `GPUPLANE_ADMIN_PASSWORD` gives the first password (in a cluster, where the data folder goes with the pod), the
file holds no secret: it says who may sign in where, and tokens are issued by the admin. Only a simulated fleet needs
tokens. A lost password is replaced by `manage.py changepassword admin`; another admin is made by
`manage.py createsuperuser`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from django.conf import settings
from django.contrib.auth.models import User

from access import services, tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.models import FirstAccount
from access.token_services import token_issue
from storage.clock import database_now
from storage.transactions import atomic_retry

ADMIN: Final = "admin"
MACHINES: Final[Mapping[str, tuple[str, TokenScope]]] = {
    "cluster_token": ("cluster", TokenScope.EXTENDER),
    "webhooks_token": ("cluster-webhooks", TokenScope.WEBHOOKS),
    "metrics_token": ("cluster-metrics", TokenScope.METRICS),
    "inventory_token": ("cluster-inventory", TokenScope.INVENTORY),
}
"""Field of the file → machine account and scope of its token. Agents' tokens are issued for each node."""
_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""None that looks like another: a password is sometimes typed. Twenty of them are 99 bits."""

log = structlog.get_logger(__name__)


class Credentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file's fields; empty ones are left out.

    `api_token` is the admin's, the others are those of MACHINES: none expires, since the file is its owner's.
    """

    url: str = ""
    username: str = ""
    password: str = ""
    api_token: str = ""
    cluster_token: str = ""
    webhooks_token: str = ""
    metrics_token: str = ""
    inventory_token: str = ""


def credentials_path() -> Path:
    """The file's path."""
    return Path(settings.GPUPLANE_DATA_DIR) / "credentials.json"


def read() -> Credentials:
    """The file's content; empty where there is no file, or it cannot be decoded."""
    try:
        return msgspec.json.decode(credentials_path().read_bytes(), type=Credentials)
    except FileNotFoundError:
        return Credentials()
    except msgspec.DecodeError as error:
        log.warning("credentials.unreadable", error=str(error))
        return Credentials()


def write(credentials: Credentials) -> None:
    """Replace the file in one step; only its owner can ever read it."""
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(credentials), indent=2) + b"\n")
    fresh.replace(path)


def ensure(*, url: str, password: str = "", with_tokens: bool = True) -> Credentials:
    """Make the first accounts where this database never had them, and credentials that work. Writes the file.

    `password` becomes that of an admin who is made now, and is not written; raises BadInput where it is too weak.
    Without `with_tokens` no token is issued or written.
    """
    before = read()
    first_password = password or _random_password()
    admin, made = _admin(first_password)
    shown = ""
    if made:
        shown = "" if password else first_password
    elif admin and before.password and admin.check_password(before.password):
        shown = before.password
    accounts = {"api_token": admin} | {field: _machine(name, scope) for field, (name, scope) in MACHINES.items()}
    ensured = Credentials(
        url=url,
        username=ADMIN if admin else "",
        password=shown,
        **{
            field: _token(account, getattr(before, field))
            for field, account in accounts.items()
            if account and with_tokens
        },
    )
    write(ensured)
    return ensured


@atomic_retry
def _admin(password: str) -> tuple[User | None, bool]:
    """(the admin's account if it is open, whether it was made now)."""
    made = _first_time(ADMIN)
    if made:
        services.superuser_create(username=ADMIN, password=password, actor=SYSTEM, now=database_now())
    return _open_account(ADMIN), made


@atomic_retry
def _machine(username: str, scope: TokenScope) -> User | None:
    """A machine account of this scope, made the first time; None if it is closed, or another kind of account."""
    if _first_time(username):
        services.user_create(
            username=username,
            password=None,
            role=Role.VIEWER,
            actor=SYSTEM,
            now=database_now(),
            service=True,
            scope=scope,
        )
    return _open_account(username, profile__service=True, profile__scope=scope, profile__node="")


def _first_time(username: str) -> bool:
    """Whether the account is to be made now: it never was, and no account has its name."""
    _, first = FirstAccount.objects.get_or_create(username=username, defaults={"made_at": database_now()})
    return first and not User.objects.filter(username=username).exists()


def _open_account(username: str, **more: Any) -> User | None:
    return User.objects.filter(username=username, is_active=True, **more).first()


def _random_password() -> str:
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


def _token(user: User, present: str) -> str:
    """The present token if it still is the user's, else a new one."""
    found = tokens.verify_user(present) if present else None
    if found is not None and found.user.pk == user.pk:
        return present
    return token_issue(user=user, actor=SYSTEM, now=database_now(), without_end=True)
