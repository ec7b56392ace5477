"""The credentials file: how a person and a cluster get in after `make run` (mode 0600, in the data folder).

Written by `manage.py bootstrap`. Invariants: the first accounts are made once in the life of a database (`FirstAccount`). A later
start changes none of them: one that was shut, deleted, given another role or another password since stays so, and gets no
token. The first password is written here and shown nowhere else; once another one is set it leaves the file. A token that
no longer works is issued again, for an account that is open; what still works stays as it is.

Where `GPUPLANE_ADMIN_PASSWORD` gives the first password (in a cluster, where the data folder goes with the pod), nothing secret is
made or written down: the file says who may sign in where, and tokens are issued by the admin. Only a simulated fleet needs its own.
Whoever has lost the password sets another by `manage.py changepassword admin`; another admin is made by `manage.py createsuperuser`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from django.conf import settings
from django.contrib.auth.models import User

from access import services, tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.models import FirstAccount
from access.token_services import token_issue
from access.transactions import atomic_retry
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
    """The first accounts, made where this database never had them, and credentials that work. Writes the file.

    A given `password` becomes that of an admin who is made now, and is not written down; raises BadInput where it is too weak.
    Without `tokens_wanted` no token is issued or written.
    """
    before = read()
    fresh = password or _made_up()
    admin, made = _admin(fresh)
    machines = {field: _machine(name, scope) for field, (name, scope) in MACHINES.items()}
    if made:
        told = "" if password else fresh
    else:
        told = before.password if admin and before.password and admin.check_password(before.password) else ""
    ensured = Credentials(
        url=url,
        username=ADMIN if admin else "",
        password=told,
        api_token=_token(admin, before.api_token) if admin and tokens_wanted else "",
        **{
            field: _token(machine, getattr(before, field)) if machine and tokens_wanted else ""
            for field, machine in machines.items()
        },
    )
    write(ensured)
    return ensured


@atomic_retry
def _admin(password: str) -> tuple[User | None, bool]:
    """(the account if it is open, whether it was made now)."""
    made = _first_time(ADMIN)
    if made:
        services.superuser_create(username=ADMIN, password=password, actor=SYSTEM, now=database_now())
    return _open_account(ADMIN), made


@atomic_retry
def _machine(username: str, scope: TokenScope) -> User | None:
    """A machine account of this scope, which only tokens open, if it is not shut; made the first time. None for anybody else's account of that name."""
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
    """Whether bootstrap has yet to make the account; from now on it has. One that somebody made before is left as it is."""
    _, first = FirstAccount.objects.get_or_create(username=username, defaults={"made_at": database_now()})
    return first and not User.objects.filter(username=username).exists()


def _open_account(username: str, **more: Any) -> User | None:
    return User.objects.filter(username=username, is_active=True, **more).first()


def _made_up() -> str:
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


def _token(user: User, given: str) -> str:
    found = tokens.verify_user(given) if given else None
    if found is not None and found.user.pk == user.pk:
        return given
    return token_issue(user=user, actor=SYSTEM, now=database_now(), without_end=True)
