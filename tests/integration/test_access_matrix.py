"""Every path × method × caller, asked of the ASGI application itself: what `tests/access_matrix.py` says, and no path
that it does not name (VIEW-6).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.urls import URLResolver, get_resolver
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from knox.models import AuthToken
from pytest_django.plugin import DjangoDbBlocker

from access import tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.models import Profile, Team, TeamNamespace
from access.sessions import SessionStore
from allocations.choices import GroupState
from allocations.models import Allocation, GpuGroup, PodRefusal
from allocations.services import claim_devices
from autoscaling.models import Pool, ScalingRequest
from claims.models import GpuClaim, GpuGang, GpuQueue
from gpuplane import application, operations
from gpuplane.listeners import LISTENER
from gpuplane.listeners.cluster import ROUTES
from gpuplane.listeners.gateway.app import COMPLETIONS, MODELS
from gpuplane.listeners.plan import ListenAddress
from gpuplane.listeners.threads import Lanes
from inference.models import Model as InferenceModel
from inference.models import Request as InferenceRequest
from inference.models import Runner, Slot
from nodes.inventory import parse_node
from nodes.live import flush
from nodes.live.hub import Hub
from nodes.models import Device, Node
from nodes.routing import websocket_urlpatterns
from nodes.services import inventory_put
from storage.clock import database_now
from tests import access_matrix as matrix
from tests.databases import connected
from tests.door import Closing
from tests.extender import filtered, pod_manifest
from tests.factories import GpuClaimFactory, TeamFactory, session_of
from tests.integration.rest.conftest import inventory

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SAFE = ("GET", "HEAD", "OPTIONS")
FEWER = ("GET", "POST", "DELETE")
"""Of Django's own admin, which is not ours to explore."""
SOME = ("anonymous", "session superuser", "token superuser", "machine agent", "revoked token")
"""Asked where everybody is answered alike."""
SECRET = "c" * 32
SPARE = "5" * 128
"""Digest of somebody's token that the callers try to revoke."""
CLOSED_UNSIGNED = 4401


def test_no_path_is_without_a_row() -> None:
    """VIEW-6 whoever adds a path says who may ask there; whoever takes one away, takes its row away."""
    assert set(_django_paths(get_resolver())) == set(matrix.DJANGO)
    before_django = {path.strip("/") for path in (*operations.PATHS, *ROUTES)}
    assert before_django <= set(matrix.PLAIN)
    assert {path.strip("/") for path in (*COMPLETIONS, MODELS)} <= set(matrix.PLAIN)
    known = {path for path in matrix.PLAIN if path.startswith(("extender/", "webhooks/")) and not path.endswith("/")}
    assert known == {path.strip("/") for path in ROUTES}
    assert {str(pattern.pattern) for pattern in websocket_urlpatterns(Hub(held_devices=list))} | {
        "ws/agents/n1/",
        "ws/runners/n1/",
        "ws/nothing/",
    } == set(matrix.SOCKETS)


def _django_paths(resolver: URLResolver, prefix: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        at = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _django_paths(pattern, at)
        else:
            yield at


@dataclass
class World:
    """The application, and who asks it."""

    app: Any
    users: Mapping[str, User] = field(default_factory=dict)
    bearers: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)

    def headers(self, caller: str) -> list[tuple[bytes, bytes]]:
        """Credentials of a caller.

        Forms carry their CSRF token always: what is asked here is who may, not from where.
        """
        found = [(b"host", b"localhost"), (b"x-csrftoken", SECRET.encode()), (b"origin", b"http://localhost")]
        cookie = f"{settings.CSRF_COOKIE_NAME}={SECRET}"
        if caller in self.users:
            cookie += f"; {settings.SESSION_COOKIE_NAME}={self.sessions[caller]}"
        if caller in self.bearers:
            found.append((b"authorization", f"Bearer {self.bearers[caller]}".encode()))
        return [*found, (b"cookie", cookie.encode())]

    def address(self, path: str) -> str:
        """The path with what is there in the place of its variables; what an earlier request took away is there
        again.
        """
        self.restore()
        device = Device.objects.order_by("id").values_list("pk", "uuid").first()
        assert device is not None
        held = Allocation.objects.filter(namespace="research", state="bound").latest("created_at").pk
        about = {
            "<str:namespace>": "research",
            "<str:name>": next((name for part, name in NAMED.items() if part in path), "n1"),
            "<str:uuid>": device[1],
            "<int:device_id>": str(device[0]),
            "<uuid:allocation_id>": str(held),
            "<uuid:uid>": str(UUID(SPARE[:32]) if "tokens/" in path else held),
            "<path:object_id>": "1",
            "<path:content_type_id>": "1",
            "<path:name>": "chat",
            "<str:username>": "spare",
            "<str:node>": "n1",
            "<str:slot_id>": "warm",
            "<slug:provider_id>": "corp",
            "<int:pk>": str(ScalingRequest.objects.get(state="wanted").pk),
            "<int:user_id>": str(User.objects.get(username="owner").pk),
            "<int:team_id>": str(Team.objects.exclude(name__in=("spare", "more")).get().pk),
            "^(?P<app_label>audit|auth|knox|access|nodes|claims|allocations)/$": "access/",
            "(?P<url>.*)$": "nothing/at/all",
        }
        for placeholder, value in about.items():
            path = path.replace(placeholder, value)
        assert "<" not in path, path
        return f"/{path}"

    def restore(self) -> None:
        """What an earlier request took away is there again."""
        for caller, user in self.users.items():
            key = self.sessions.get(caller)
            if key is None or not SessionStore(key).exists(key):
                self.sessions[caller] = session_of(user).session_key or ""
        claim, _ = GpuClaim.objects.get_or_create(namespace="research", name="train", defaults=_claim_fields())
        GpuGang.objects.get_or_create(
            namespace="research", name="ring", defaults={**_claim_fields(), "spec": {"minMember": 1}}
        )
        GpuQueue.objects.get_or_create(name="top", defaults={**_claim_fields(), "spec": {}})
        now = database_now()
        User.objects.get_or_create(username="spare")
        Team.objects.get_or_create(name="spare")
        Pool.objects.get_or_create(name="h100", defaults={"changed_at": now})
        ScalingRequest.objects.get_or_create(
            pool="h100", state="wanted", defaults={"shape": "s", "created_at": now, "changed_at": now}
        )
        GpuGroup.objects.get_or_create(name="shares", defaults=_group_fields())
        if not Allocation.objects.filter(namespace="research", state="bound").exists():
            claim_devices(claim=claim, actor=SYSTEM)
        _restore_slots(Allocation.objects.filter(namespace="research", state="bound").latest("created_at").pk, now)
        if not AuthToken.objects.filter(pk=SPARE).update(expiry=None):
            owner, _ = User.objects.get_or_create(username="owner")
            AuthToken.objects.bulk_create([AuthToken(digest=SPARE, token_key="5" * 15, user=owner)])


def _claim_fields() -> dict[str, Any]:
    made = GpuClaimFactory.build()
    return {"spec": made.spec, "created_at": made.created_at, "changed_at": made.changed_at}


def _group_fields() -> dict[str, Any]:
    now = database_now()
    node, pod = Node.objects.get(name="n1"), {"pod_namespace": "gpuplane-reservation", "pod_name": "shares"}
    return {"node": node, "state": GroupState.WANTED, "shared": True, "created_at": now, "changed_at": now, **pod}


def _restore_slots(request_id: UUID, now: datetime) -> None:
    """A model, a runner, a slot and a request, which has the id of an allocation."""
    times = {"registered_at": now, "seen_at": now, "changed_at": now}
    InferenceModel.objects.get_or_create(
        name="chat", defaults={"runtime": "simulated", "memory": 1, "created_at": now, "changed_at": now}
    )
    Runner.objects.get_or_create(node=Node.objects.get(name="n1"), defaults=times)
    slot = {"model_name": "chat", "model_revision": 1, "node": "n1", "gpus": [0], "memory": [1], "changed_at": now}
    Slot.objects.update_or_create(id="warm", defaults={**slot, "state": "planned", "planned_at": now})
    InferenceRequest.objects.get_or_create(id=request_id, defaults={"model_name": "chat", "arrived_at": now})


def _account(
    *, role: Role = Role.VIEWER, scope: TokenScope = TokenScope.REST, node: str = "", service: bool = False, **more: Any
) -> User:
    """Without a password, whose hashing takes longer than everything else here."""
    more.setdefault("username", f"user-{User.objects.count()}")
    user = User.objects.create(password="!", **more)
    machine = service or scope != TokenScope.REST
    Profile.objects.create(user=user, role=role, scope=scope, node=node, service=machine)
    return user


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """One database for all paths, and one application."""
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock():
        patch.setattr(application, "Lanes", partial(Lanes, Closing))
        patch.setattr(flush, "ensure_running", lambda: None)
        patch.setattr(SchemaGenerator, "get_schema", lambda *_args, **_more: {})  # takes a second each time
        with connected("sqlite", tmp_path_factory.mktemp("matrix")):
            yield _peopled(application.Application())
            connections.close_all()


def _peopled(app: application.Application) -> World:
    made = World(app)
    inventory_put(shape=parse_node(inventory("n1")), actor=SYSTEM, now=database_now())
    team = TeamFactory()
    TeamNamespace.objects.create(team=team, namespace="research")
    people = {
        "viewer": _account(username="viewer", role=Role.VIEWER),
        "operator": _account(username="operator", role=Role.OPERATOR),
        "admin": _account(username="admin", role=Role.ADMIN),
        "superuser": _account(username="superuser", role=Role.VIEWER, is_superuser=True, is_staff=True),
    }
    made.users = {f"session {name}": user for name, user in people.items()}
    made.bearers = {f"token {name}": tokens.issue(user) for name, user in people.items()}
    rest = _account(username="machine-rest", role=Role.OPERATOR, service=True)
    made.bearers["machine rest"] = tokens.issue(rest)
    Team.objects.get(pk=team.pk).members.add(people["viewer"], people["operator"], rest)
    for scope in TokenScope:
        if scope not in (TokenScope.REST, TokenScope.AGENT):
            made.bearers[f"machine {scope.value}"] = tokens.issue(_account(role=Role.ADMIN, scope=scope))
    for node, caller in (("n1", "machine agent"), ("n2", "machine agent of n2")):
        made.bearers[caller] = tokens.issue(_account(scope=TokenScope.AGENT, node=node))
    ada = _account(role=Role.ADMIN)
    made.bearers["expired token"] = tokens.issue(ada, ends_at=timezone.now() - timedelta(days=1))
    gone = _account(role=Role.ADMIN)
    made.bearers["revoked token"] = tokens.issue(gone)
    tokens.revoke_all(gone)
    made.bearers["token of a shut account"] = tokens.issue(_account(role=Role.ADMIN, is_active=False))
    waiting = pod_manifest("waits", namespace="research", resources={"nvidia.com/gpu": "8"})
    assert filtered(waiting, ["n1"]) is None
    assert PodRefusal.objects.filter(namespace="research", pod_name="waits").exists()
    made.restore()
    assert set(made.bearers) | set(made.users) | {"anonymous"} == set(matrix.CALLERS)
    return made


NAMED: Mapping[str, str] = {
    "pods/": "waits",
    "pools/": "h100",
    "pending/": "waits",
    "claims/": "train",
    "gangs/": "ring",
    "queues/": "top",
    "reservations/": "shares",
    "teams/": "spare",
}
"""What a path's name stands for, by a part of the path; a node elsewhere."""

BODIES: Mapping[tuple[str, str], Any] = {
    ("PUT", "api/v1/nodes/<str:name>/inventory/"): inventory("n1"),
    ("POST", "api/v1/claims/"): {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "more", "namespace": "research"},
        "spec": {"devices": {"count": 1}},
    },
    ("PUT", "api/v1/claims/<str:namespace>/<str:name>/"): {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "train", "namespace": "research"},
        "spec": {"devices": {"count": 1}},
    },
    ("PATCH", "api/v1/claims/<str:namespace>/<str:name>/"): {"spec": {"ttlSeconds": 60}},
    ("POST", "api/v1/claims/<str:namespace>/<str:name>/renew/"): {"ttlSeconds": 60},
    ("POST", "api/v1/gangs/"): {"metadata": {"name": "more", "namespace": "research"}, "spec": {"minMember": 1}},
    ("PUT", "api/v1/gangs/<str:namespace>/<str:name>/"): {"metadata": {"name": "ring"}, "spec": {"minMember": 1}},
    ("POST", "api/v1/queues/"): {"metadata": {"name": "more"}},
    ("PUT", "api/v1/queues/<str:name>/"): {"metadata": {"name": "top"}},
    ("POST", "api/v1/models/"): {"name": "more", "runtime": "vllm"},
    ("PUT", "api/v1/models/<path:name>/"): {"name": "chat", "runtime": "vllm"},
    ("POST", "api/v1/allocations/"): {"namespace": "research", "claim": "train"},
    ("POST", "api/v1/allocations/<uuid:uid>/resize/"): {"core": 50},
    ("PATCH", "api/v1/tokens/<uuid:uid>/"): {"days": 3},
    ("POST", "api/v1/accounts/"): {"username": "more"},
    ("POST", "api/v1/teams/"): {"name": "more"},
}
"""What is sent with a method to a path, so that the refusal is about who asks; `{}` elsewhere."""


@pytest.mark.parametrize("path", [*matrix.DJANGO, *matrix.PLAIN])
def test_http(world: World, path: str) -> None:
    """VIEW-6 each caller is answered as the matrix says, and nobody meets a fault."""
    row = {**matrix.DJANGO, **matrix.PLAIN}[path]
    methods = FEWER if path.startswith("admin/") else METHODS

    wrong: list[str] = []

    async def ask_all() -> None:
        async with ThreadSensitiveContext():
            for method in methods:
                want = matrix.GUARDS[row.get(method, row.get("*", ""))]
                body = json.dumps(BODIES.get((method, path), {})).encode()
                at = await sync_to_async(world.address)(path)
                alike = len(set(want.values())) == 1
                for caller in SOME if alike else matrix.CALLERS:
                    found = await _http(world, method, at, caller, body)
                    if found != want[caller]:
                        wrong.append(f"{method} by {caller}: {found}, not {want[caller]}")
                    if found == "yes" and method not in SAFE:
                        at = await sync_to_async(world.address)(path)
            await sync_to_async(connections.close_all)()

    asyncio.run(ask_all())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", matrix.SOCKETS)
def test_sockets(world: World, path: str) -> None:
    """VIEW-6 as above, for streams and agents."""
    want = dict(matrix.GUARDS[matrix.SOCKETS[path]])

    async def asked() -> dict[str, str]:
        found = {}
        async with ThreadSensitiveContext():
            at = await sync_to_async(world.address)(path)
            for caller in matrix.CALLERS:
                found[caller] = await _socket(world, at, caller)
            await sync_to_async(connections.close_all)()
        return found

    assert asyncio.run(asked()) == want


OTHER_DOORS = (
    ListenAddress("extender", "127.0.0.1", 1, None, ("/extender/",), bearer=False),
    ListenAddress("webhook", "127.0.0.1", 2, None, ("/webhooks/",), bearer=False),
)


@pytest.mark.parametrize("door", OTHER_DOORS, ids=lambda door: door.name)
def test_other_listeners_serve_their_own_paths_alone(world: World, door: ListenAddress) -> None:
    """VIEW-6 of all paths, with an admin's credentials."""

    async def asked() -> set[str]:
        open_there = set()
        async with ThreadSensitiveContext():
            for path in [*matrix.DJANGO, *matrix.PLAIN]:
                at = await sync_to_async(world.address)(path)
                answer = await _http(world, "POST", at, "token superuser", b"{}", door=door)
                if answer != "404":
                    open_there.add(path)
            for path in matrix.SOCKETS:
                at = await sync_to_async(world.address)(path)
                assert await _socket(world, at, "session superuser", door=door) == "404"
        return open_there

    assert asyncio.run(asked()) == {path.strip("/") for path in ROUTES if door.permits(path)}


async def _http(
    world: World, method: str, path: str, caller: str, body: bytes, *, door: ListenAddress | None = None
) -> str:
    told = [{"type": "http.request", "body": body, "more_body": False}]
    answers: list[Any] = []
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if told:
            return told.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [*world.headers(caller), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        **({} if door is None else {LISTENER: door}),
    }
    await world.app(scope, receive, send)
    over.set()
    start = answers[0]
    return _class_of(
        start["status"], {name.lower(): value for name, value in start["headers"]}.get(b"location", b"").decode(), path
    )


def _class_of(status: int, location: str, path: str) -> str:
    if status in (401, 403, 404, 405):
        return str(status)
    to_sign_in = location.startswith(("/sign-in/", "/admin/login/"))
    if status == 302 and to_sign_in and not path.startswith(("/sign-out/", "/admin/log")):
        return "sign in"
    assert status < 500 or status == 503, f"{path}: {status}"
    return "yes"


async def _socket(world: World, path: str, caller: str, *, door: ListenAddress | None = None) -> str:
    """The outcome of one handshake, and what comes first after it."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    inbox.put_nowait({"type": "websocket.connect"})
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": world.headers(caller),
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
        **({} if door is None else {LISTENER: door}),
    }
    serving = asyncio.create_task(world.app(scope, inbox.get, outbox.put))
    try:
        async with asyncio.timeout(30):
            first = await outbox.get()
            if first["type"] == "websocket.http.response.start":
                return str(first["status"])
            assert first["type"] == "websocket.accept", first
            if path.startswith(("/ws/agents/", "/ws/runners/")):
                return "yes"
            second = await outbox.get()
    finally:
        inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait({serving}, timeout=10)
        assert serving.done(), "the socket does not end"
    if second["type"] == "websocket.close":
        assert second["code"] == CLOSED_UNSIGNED
        return "401"
    return "yes"
