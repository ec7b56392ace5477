"""The one ASGI application behind every listener.

Made by `gpuplane.asgi` once Django is set up. Routes by the path's first part: inference, the cluster's and the agents'
paths to plain ASGI handlers (a hundred microseconds of Django's request cycle is a quarter of a filter), files to
whitenoise, everything else to Django or Channels. Paths that a listener does not permit are answered 404.
"""

from __future__ import annotations

from typing import Any, cast

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings
from django.urls import re_path

from access import tokens
from allocations.selectors import held_devices
from gpuplane.listeners import LISTENER, App, Receive, Scope, Send
from gpuplane.listeners.agent_tokens import AgentTokens
from gpuplane.listeners.agents import Agents
from gpuplane.listeners.answers import refuse_socket, send_problem
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.bodies import guarded
from gpuplane.listeners.body_limits import BodyLimits
from gpuplane.listeners.cluster import ROUTES, ClusterPaths
from gpuplane.listeners.disconnects import watched
from gpuplane.listeners.django_requests import DjangoRequests
from gpuplane.listeners.gateway.app import Gateway
from gpuplane.listeners.gateway.serving import Serving
from gpuplane.listeners.lifespan import serve_lifespan
from gpuplane.listeners.origins import SameOrigin
from gpuplane.listeners.proxies import behind_proxies
from gpuplane.listeners.runners import Runners
from gpuplane.listeners.sign_ins import SignInGate
from gpuplane.listeners.static import StaticFiles
from gpuplane.listeners.threads import Lanes, django_slots, release_connections_while_waiting
from gpuplane.start.gateway import DESK, UPSTREAM
from kube.shared import shared_cluster
from nodes.live.hub import Hub
from nodes.routing import websocket_urlpatterns


class Application:
    """ASGI callable."""

    def __init__(self) -> None:
        lanes = Lanes()
        limits = BodyLimits(settings.GPUPLANE_BODY_LIMIT)
        release_connections_while_waiting()
        agent_tokens = AgentTokens(
            cluster=lambda: shared_cluster(settings.GPUPLANE_KUBECONFIG),
            account=settings.GPUPLANE_AGENT_SERVICE_ACCOUNT,
            audience=settings.GPUPLANE_AGENT_AUDIENCE,
        )
        bearer = Bearer(known=tokens.verify_cached, verify=tokens.verify, lanes=lanes, agents=agent_tokens)
        self._cluster = ClusterPaths(routes=ROUTES, bearer=bearer, lanes=lanes, limits=limits)
        self._agents = Agents(bearer=bearer, bound=limits.agents)
        self._runners = Runners(bearer=bearer)
        serving = Serving(bound=limits.gateway, dispatcher=DESK, upstream=UPSTREAM, bodies=lanes.bodies)
        self._gateway = Gateway(bearer=bearer, serving=serving, reads=lanes.models)
        pages = guarded(
            watched(DjangoRequests(lanes.django)),
            bound_of=limits.of_django,
            slots=django_slots(settings.GPUPLANE_DATABASE_POOL),
        )
        self._django = behind_proxies(pages, settings.GPUPLANE_TRUSTED_PROXIES)
        self._sign_in = SignInGate(self._django)
        self._provider_sign_in = SignInGate(self._django, name="provider sign-in")
        self._static = StaticFiles()
        # `nodes` may not import `allocations`, so the holders of devices are passed in here
        streams = URLRouter([*websocket_urlpatterns(Hub(held_devices=held_devices)), _NOWHERE])
        checked = SameOrigin(cast("App", AuthMiddlewareStack(streams)))
        self._sockets = behind_proxies(checked, settings.GPUPLANE_TRUSTED_PROXIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, socket or lifespan."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await serve_lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not _permitted(scope):
            await send_problem(send, 404, _NOT_HERE)
        elif path.startswith(("/extender/", "/webhooks/")):
            await self._cluster(scope, receive, send)
        elif path.startswith("/v1/"):
            await self._gateway(scope, receive, send)
        elif path.startswith("/api/v1/agents/"):
            await self._agents.samples(scope, receive, send)
        elif path.startswith(settings.STATIC_URL):
            await self._static(scope, receive, send)
        elif path == settings.LOGIN_URL and scope["method"] == "POST":
            await self._sign_in(scope, receive, send)
        elif path.startswith(_BY_PROVIDER):
            await self._provider_sign_in(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _permitted(scope):
            await receive()
            await refuse_socket(scope, send, 404, _NOT_HERE)
        elif scope["path"].startswith("/ws/agents/"):
            await self._agents.socket(scope, receive, send)
        elif scope["path"].startswith("/ws/runners/"):
            await self._runners.socket(scope, receive, send)
        else:
            await self._sockets(scope, receive, send)


_BY_PROVIDER = f"{settings.LOGIN_URL}with/"
_NOT_HERE = "this address does not serve that path"


def _permitted(scope: Scope) -> bool:
    """Whether the listener that took the request serves its path."""
    listener = scope.get(LISTENER)
    return listener is None or listener.permits(scope["path"])


async def _no_such_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await refuse_socket(scope, send, 404, "there is no such path")


_NOWHERE = re_path("", cast("Any", _no_such_socket))  # Django's types know views only
