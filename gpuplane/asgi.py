"""The one ASGI application behind every door.

Served by `gpuplane.serve`. Routes by the path's first part: the cluster's and the agents' paths to plain
ASGI handlers (a hundred microseconds of Django's request cycle is a quarter of a filter), files to
whitenoise, everything else to Django or Channels. What a door does not permit does not exist there.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, cast

import django
import structlog

from gpuplane.doors import DOOR, App, Receive, Scope, Send

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
django.setup()

from channels.auth import AuthMiddlewareStack  # noqa: E402 - Django must be set up before
from channels.routing import URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import re_path  # noqa: E402

from access import tokens  # noqa: E402
from gpuplane.doors.agent_tokens import AgentTokens  # noqa: E402
from gpuplane.doors.agents import Agents  # noqa: E402
from gpuplane.doors.answers import refuse_socket, send_problem  # noqa: E402
from gpuplane.doors.bearer import Bearer  # noqa: E402
from gpuplane.doors.bodies import guarded  # noqa: E402
from gpuplane.doors.body_limits import BodyLimits  # noqa: E402
from gpuplane.doors.cluster import ROUTES, Cluster  # noqa: E402
from gpuplane.doors.departures import watched  # noqa: E402
from gpuplane.doors.django_requests import DjangoRequests  # noqa: E402
from gpuplane.doors.lifespan import serve_lifespan  # noqa: E402
from gpuplane.doors.origins import SameOrigin  # noqa: E402
from gpuplane.doors.proxies import behind_proxies  # noqa: E402
from gpuplane.doors.sign_ins import SignInGate  # noqa: E402
from gpuplane.doors.static import StaticFiles  # noqa: E402
from gpuplane.doors.threads import django_turns, lanes, let_go_while_waiting  # noqa: E402
from kube.shared import shared_cluster  # noqa: E402

log = structlog.get_logger(__name__)


class Application:
    """ASGI callable; parts that cost time or memory are made at their first use."""

    def __init__(self) -> None:
        self._lanes = lanes()
        self._limits = BodyLimits(settings.GPUPLANE_BODY_LIMIT)
        let_go_while_waiting()
        agents = AgentTokens(
            cluster=lambda: shared_cluster(settings.GPUPLANE_KUBECONFIG),
            account=settings.GPUPLANE_AGENT_SERVICE_ACCOUNT,
            audience=settings.GPUPLANE_AGENT_AUDIENCE,
        )
        self._bearer = Bearer(
            known=tokens.known,
            verify=tokens.verify,
            lanes=self._lanes,
            agents=agents,
        )
        self._cluster = Cluster(routes=ROUTES, bearer=self._bearer, lanes=self._lanes, limits=self._limits)
        pages = guarded(
            watched(DjangoRequests(self._lanes.django)),
            bound_of=self._limits.of_django,
            turns=django_turns(settings.GPUPLANE_DATABASE_POOL),
        )
        self._django = behind_proxies(pages, settings.GPUPLANE_TRUSTED_PROXIES)
        self._sign_in = SignInGate(self._django)
        self._static = StaticFiles()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, socket or lifespan."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await serve_lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        door = scope.get(DOOR)
        if door is not None and not door.permits(path):
            await send_problem(send, 404, "this door does not lead there")
        elif path.startswith(("/extender/", "/webhooks/")):
            await self._cluster(scope, receive, send)
        elif path.startswith("/api/v1/agents/"):
            await self._agents.samples(scope, receive, send)
        elif path.startswith(settings.STATIC_URL):
            await self._static(scope, receive, send)
        elif path == settings.LOGIN_URL and scope["method"] == "POST":
            await self._sign_in(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        door = scope.get(DOOR)
        if door is not None and not door.permits(path):
            await receive()
            await refuse_socket(scope, send, 404, "this door does not lead there")
        elif path.startswith("/ws/agents/"):
            await self._agents.socket(scope, receive, send)
        else:
            await self._sockets(scope, receive, send)

    @cached_property
    def _agents(self) -> Agents:
        from nodes.live import ingest

        return Agents(bearer=self._bearer, ingest=ingest, bound=self._limits.agents)

    @cached_property
    def _sockets(self) -> App:
        """Browsers' streams: ordinary Channels consumers, session and origin checked."""
        from nodes.routing import websocket_urlpatterns

        routed = URLRouter([*websocket_urlpatterns, _NOWHERE])
        checked = SameOrigin(cast("App", AuthMiddlewareStack(routed)))
        return behind_proxies(checked, settings.GPUPLANE_TRUSTED_PROXIES)


async def _no_such_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await refuse_socket(scope, send, 404, "there is no such path")


_NOWHERE = re_path("", cast("Any", _no_such_socket))  # Django's types know views only

application = Application()
