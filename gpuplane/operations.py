"""`/livez`, `/readyz` and `/metrics`: for probes and scrapers, without credentials.

A token that is sent to `/metrics` must be for it. Invariants: they answer under any host name (probes use addresses, so
this middleware is before the host check) and reveal nothing secret. Live means the process answers. Ready means the
database migrated, credentials written, fleet snapshot loaded, simulated nodes registered, room to write, and the
cluster's definitions applied or its API server reported down.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

import allocations.counters
import allocations.extender.counters  # noqa: F401 - its series from the first scrape
from access.authorization import bearer_token
from access.choices import TokenScope
from access.tokens import verify
from allocations import fleet
from gpuplane.credentials import credentials_path
from gpuplane.problems import MEDIA_TYPE, Problem
from gpuplane.start import definitions
from nodes.models import Node
from storage.transactions import SPACE, is_full

CHALLENGE: Final = 'Bearer realm="gpuplane"'


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness; `detail` says what is missing, or its state."""

    ok: bool
    detail: str = ""


class _Migrated:
    """Remembers that every migration has run, which stays so in a running process."""

    done = False


def _migrated() -> Check:
    if not _Migrated.done:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if missing:
            return Check(ok=False, detail=f"{len(missing)} migrations to run")
        _Migrated.done = True
    connection.ensure_connection()
    return Check(ok=True)


def _credentials() -> Check:
    written = credentials_path().is_file()
    return Check(ok=written, detail="" if written else "manage.py bootstrap has not run")


def _snapshot() -> Check:
    return Check(ok=fleet.loaded(), detail="" if fleet.loaded() else "the snapshot of the fleet is loading")


LEAST_FREE_BYTES = 64 << 20
"""With less on its disk a SQLite database counts as full: its log alone grows to 40 MB under load."""
PROBE_BYTES = 64 << 10
PROBE_KEY = "gpuplane-space-probe"
PROBE_SECONDS = 5.0
"""A database that was full is probed at most once in so many seconds."""


class _LastProbe:
    """Its time, by the monotonic clock."""

    at = float("-inf")


def _space() -> Check:
    """Whether there is room to write: by a SQLite database's disk, and by how writes of this process ended."""
    if connection.vendor == "sqlite" and shutil.disk_usage(settings.GPUPLANE_DATA_DIR).free < LEAST_FREE_BYTES:
        return Check(ok=False, detail=f"the disk of the database has less than {LEAST_FREE_BYTES >> 20} MiB left")
    if SPACE.full and time.monotonic() - _LastProbe.at >= PROBE_SECONDS:
        _LastProbe.at = time.monotonic()
        try:
            _probe_write()
        except DatabaseError as error:
            if not is_full(error):
                raise
        else:
            SPACE.found()
    return Check(ok=not SPACE.full, detail="the database has no space left" if SPACE.full else "")


def _probe_write() -> None:
    """Write some pages and delete them again. Raises DatabaseError."""
    with transaction.atomic():
        Session.objects.update_or_create(
            session_key=PROBE_KEY,
            defaults={"session_data": secrets.token_hex(PROBE_BYTES // 2), "expire_date": timezone.now()},
        )
    Session.objects.filter(session_key=PROBE_KEY).delete()


def _simulation() -> Check:
    if not settings.GPUPLANE_SIMULATE:
        return Check(ok=True, detail="off")
    want, have = settings.GPUPLANE_SIMULATE_NODES, Node.objects.count()
    return Check(ok=have >= want, detail=f"{have} of {want} nodes registered")


def _cluster() -> Check:
    if not settings.GPUPLANE_KUBECONFIG or settings.GPUPLANE_AGENTS_ONLY:
        return Check(ok=True, detail="off")
    state = definitions.STATE
    return Check(
        ok=state.applied or bool(state.problem),
        detail=state.problem or ("" if state.applied else "asking the API server"),
    )


CHECKS: dict[str, Callable[[], Check]] = {
    "migrated": _migrated,
    "credentials": _credentials,
    "picture": _snapshot,
    "space": _space,
    "simulation": _simulation,
    "cluster": _cluster,
}


def readiness() -> dict[str, Check]:
    """Every check with its outcome; without a database, or the data folder, the checks that need it fail."""
    outcome = {}
    for name, check in CHECKS.items():
        try:
            outcome[name] = check()
        except DatabaseError:
            outcome[name] = Check(ok=False, detail="the database cannot be reached")
        except OSError as error:  # such as a data folder that is gone
            outcome[name] = Check(ok=False, detail=error.strerror or type(error).__name__)
    return outcome


def _livez(_request: HttpRequest) -> HttpResponse:
    return _json({"status": "ok"}, 200)


def _readyz(_request: HttpRequest) -> HttpResponse:
    outcome = readiness()
    ready = all(check.ok for check in outcome.values())
    return _json({"status": "ready" if ready else "not ready", "checks": outcome}, 200 if ready else 503)


def _metrics(request: HttpRequest) -> HttpResponse:
    return _refused_token(request) or HttpResponse(generate_latest(), content_type=CONTENT_TYPE_LATEST)


def _refused_token(request: HttpRequest) -> HttpResponse | None:
    """401 or 403 for a token that is invalid or for something else: none is needed, so it was configured by mistake."""
    token = bearer_token(request.headers.get("Authorization", "").encode("latin-1"))
    if token is None:
        return None
    try:
        actor = verify(token.decode("latin-1"))
    except DatabaseError:
        return None  # metrics need no credentials, least of all now
    if actor is None:
        problem = Problem(status=401, detail="the token is not known, was revoked, or has ended")
    elif actor.scope != TokenScope.METRICS:
        problem = Problem(status=403, detail=actor.refusal(TokenScope.METRICS))
    else:
        return None
    response = _json(problem.document(), problem.status)
    response["Content-Type"] = MEDIA_TYPE
    if problem.status == 401:
        response["WWW-Authenticate"] = CHALLENGE
    return response


PATHS: dict[str, Callable[[HttpRequest], HttpResponse]] = {
    "/livez": _livez,
    "/readyz": _readyz,
    "/metrics": _metrics,
}


def operations_middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Answer PATHS before any other middleware."""

    def answer(request: HttpRequest) -> HttpResponse:
        view = PATHS.get(request.path_info)
        if view is None:
            return get_response(request)
        if request.method not in {"GET", "HEAD"}:
            return _json({"type": "about:blank", "title": "Method Not Allowed", "status": 405}, 405)
        return view(request)

    return answer


def _json(body: object, status: int) -> HttpResponse:
    response = HttpResponse(orjson.dumps(body), status=status, content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response
