"""The credentials file: how a person and a cluster get in after `make run` (mode 0600, in the data folder).

Written by `manage.py bootstrap`. Kept true: what the file says works: what no longer does is issued
again; what still does stays as it is, so tokens survive a restart.

Where `GPUPLANE_ADMIN_PASSWORD` gives the password (in a cluster, where the data folder goes with the pod), nothing secret is
made or written down: the file says who may sign in where, and tokens are issued by the admin. Only a simulated fleet needs its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import orjson
import structlog
from django.conf import settings
from django.contrib.auth.models import User

from access import services, tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.token_services import token_issue
from audit.clock import database_now

ADMIN = "admin"
CLUSTER = "cluster"
MACHINES: Final[Mapping[str, tuple[str, TokenScope]]] = {
    "cluster_token": (CLUSTER, TokenScope.EXTENDER),
    "webhooks_token": ("cluster-webhooks", TokenScope.WEBHOOKS),
    "metrics_token": ("cluster-metrics", TokenScope.METRICS),
    "inventory_token": ("cluster-inventory", TokenScope.INVENTORY),
}
"""Field of the file → machine account and what its token opens. Agents' tokens are issued node by node, as nodes come."""
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""None that looks like another: a password is sometimes typed. Twenty of them are 99 bits."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the file holds; what is empty is left out. `api_token` is the admin's, the others are those of MACHINES: none has an end, the file is its owner's."""

    url: str = ""
    username: str = ""
    password: str = ""
    api_token: str = ""
    cluster_token: str = ""
    webhooks_token: str = ""
    metrics_token: str = ""
    inventory_token: str = ""


def credentials_path() -> Path:
    """Where the file lies."""
    return Path(settings.GPUPLANE_DATA_DIR) / "credentials.json"


def read() -> Credentials:
    """What the file says; empty where it says nothing, or cannot be read as such."""
    try:
        found = orjson.loads(credentials_path().read_bytes())
    except FileNotFoundError:
        return Credentials()
    except orjson.JSONDecodeError as error:
        log.warning("credentials.unreadable", error=str(error))
        return Credentials()
    if not isinstance(found, dict):
        log.warning("credentials.unreadable", error="not an object")
        return Credentials()
    known = {field.name for field in fields(Credentials)}
    return Credentials(**{name: value for name, value in found.items() if name in known and isinstance(value, str)})


def write(credentials: Credentials) -> None:
    """Replace the file in one step; nobody but its owner can ever read it."""
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        told = {name: value for name, value in asdict(credentials).items() if value}
        file.write(orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
    fresh.replace(path)


def ensure(*, url: str, password: str = "", tokens_wanted: bool = True) -> Credentials:
    """Accounts and credentials that work, issued anew only where the file's do not. Writes the file.

    A given `password` becomes the admin's and is not written down; raises BadInput where it is too weak. Without
    `tokens_wanted` none is issued or written.
    """
    before = read()
    admin = _account(ADMIN)
    machines = {field: _account(name, scope) for field, (name, scope) in MACHINES.items()}
    if password:
        _password_given(admin, password)
    ensured = Credentials(
        url=url,
        username=ADMIN,
        password="" if password else _password(admin, before.password),
        api_token=_token(admin, before.api_token) if tokens_wanted else "",
        **{
            field: _token(machine, getattr(before, field)) if tokens_wanted else ""
            for field, machine in machines.items()
        },
    )
    write(ensured)
    return ensured


def _account(username: str, scope: TokenScope = TokenScope.REST) -> User:
    """The account, made if missing: an admin, or a machine account of this scope, which only tokens open."""
    service = scope != TokenScope.REST
    found = User.objects.filter(username=username).first()
    if found is None:
        role = Role.VIEWER if service else Role.ADMIN
        found = services.user_create(
            username=username, password=None, role=role, actor=SYSTEM, now=database_now(), service=service, scope=scope
        )
    if not service and not (found.is_staff and found.is_superuser):
        found.is_staff = found.is_superuser = True
        found.save(update_fields=["is_staff", "is_superuser"])
    services.user_active_set(user=found, active=True, actor=SYSTEM, now=database_now())
    return found


def _password(user: User, given: str) -> str:
    if given and user.check_password(given):
        return given
    fresh = "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))
    services.password_set(user=user, password=fresh, actor=SYSTEM, now=database_now())
    return fresh


def _password_given(user: User, password: str) -> None:
    """Set it where it is another one: setting the same again would end every session."""
    if not user.check_password(password):
        services.password_set(user=user, password=password, actor=SYSTEM, now=database_now())


def _token(user: User, given: str) -> str:
    found = tokens.verify_user(given) if given else None
    if found is not None and found.user.pk == user.pk:
        return given
    return token_issue(user=user, actor=SYSTEM, now=database_now(), without_end=True)
