"""`/livez`, `/readyz` and `/metrics`: for probes and scrapers, without credentials. A token that is sent along to `/metrics` must be for it.

Kept true: they answer under any host name (probes ask by address, so this middleware stands before the
host check) and tell nothing that needs hiding. Live means the process answers. Ready means migrated,
credentials written, picture loaded, simulated nodes registered, room to write, and the cluster's definitions
applied or its API server reported down.
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
import allocations.extender.counters  # noqa: F401 - its series are there from the first scrape, not from the first filter
from access.choices import TokenScope
from access.tokens import verify
from access.transactions import SPACE, is_full
from allocations import fleet
from gpuplane.credentials import credentials_path
from gpuplane.problems import MEDIA_TYPE, Problem
from gpuplane.start import definitions
from nodes.models import Node

CHALLENGE: Final = 'Bearer realm="gpuplane"'


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness; `detail` says what is missing, or how it stands."""

    ok: bool
    detail: str = ""


class _Migrated:
    """Remembers that every migration has run: that does not turn back under a running process."""

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


def _picture() -> Check:
    return Check(ok=fleet.loaded(), detail="" if fleet.loaded() else "the picture of the fleet is loading")


LEAST_FREE_BYTES = 64 << 20
"""With less on the disk of a SQLite database it counts as full: its log alone grows to 40 MB under load."""
PROBE_BYTES = 64 << 10
PROBE_KEY = "gpuplane-space-probe"
PROBE_SECONDS = 5.0
"""A database that was full is tried again so often at most."""


class _Probed:
    """When it was last tried."""

    at = float("-inf")


def _space() -> Check:
    """Whether there is room to write: by the disk of a SQLite database, and by what the database itself answered to writes of this process."""
    if connection.vendor == "sqlite" and shutil.disk_usage(settings.GPUPLANE_DATA_DIR).free < LEAST_FREE_BYTES:
        return Check(ok=False, detail=f"the disk of the database has less than {LEAST_FREE_BYTES >> 20} MiB left")
    if SPACE.full and time.monotonic() - _Probed.at >= PROBE_SECONDS:
        _Probed.at = time.monotonic()
        try:
            _write_and_forget()
        except DatabaseError as error:
            if not is_full(error):
                raise
        else:
            SPACE.found()
    return Check(ok=not SPACE.full, detail="the database has no space left" if SPACE.full else "")


def _write_and_forget() -> None:
    """Write some pages and free them again. Raises DatabaseError."""
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
    "picture": _picture,
    "space": _space,
    "simulation": _simulation,
    "cluster": _cluster,
}


def readiness() -> dict[str, Check]:
    """Every check with its outcome; a database that is away fails the checks that need it."""
    outcome = {}
    for name, check in CHECKS.items():
        try:
            outcome[name] = check()
        except DatabaseError:
            outcome[name] = Check(ok=False, detail="the database cannot be reached")
    return outcome


def _livez(_request: HttpRequest) -> HttpResponse:
    return _json({"status": "ok"}, 200)


def _readyz(_request: HttpRequest) -> HttpResponse:
    outcome = readiness()
    ready = all(check.ok for check in outcome.values())
    checks = {name: {"ok": check.ok, "detail": check.detail} for name, check in outcome.items()}
    return _json({"status": "ready" if ready else "not ready", "checks": checks}, 200 if ready else 503)


def _metrics(request: HttpRequest) -> HttpResponse:
    refusal = _refused_token(request)
    if refusal is not None:
        return refusal
    return HttpResponse(generate_latest(), content_type=CONTENT_TYPE_LATEST)


def _refused_token(request: HttpRequest) -> HttpResponse | None:
    """401 or 403 for a token that is sent although none is needed, and does not count or is for something else: somebody has mixed them up."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    try:
        actor = verify(token.strip())
    except DatabaseError:
        return None  # what is told needs no credentials, least of all now
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


class OperationsMiddleware:
    """Answers PATHS before anything else sees the request."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer or pass on."""
        answer = PATHS.get(request.path_info)
        if answer is None:
            return self._get_response(request)
        if request.method not in {"GET", "HEAD"}:
            return _json({"type": "about:blank", "title": "Method Not Allowed", "status": 405}, 405)
        return answer(request)


def _json(body: object, status: int) -> HttpResponse:
    response = HttpResponse(orjson.dumps(body), status=status, content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response
