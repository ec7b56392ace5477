"""The product that is attacked: the real web process with its three listeners, on SQLite, a Redis and a stand-in API
server of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from access import tokens
from access.choices import Role, TokenScope
from tests.attacks import wire
from tests.attacks.target import HOST, Listener, Target
from tests.bench import fleets
from tests.certificates import Authority
from tests.factories import UserFactory, session_of
from tests.fakes.apiserver import ApiServer
from tests.servers import redis, session, web

NODES = 64
AGENT_NODE = "attacked-agent"
AGENT_TOKEN = wire.agent_like("honest")


@dataclass(frozen=True, slots=True)
class Product:
    """What runs. `path`: the file that other processes read."""

    target: Target
    path: Path
    app: web.LiveApp
    api: ApiServer
    pid: int

    def rss_bytes(self) -> int:
        """Memory of the web process. Raises OSError when it is gone."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """That the web process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_tail(self) -> str:
        """The last words of the web process."""
        return "\n".join(self.app.log.read_text(errors="replace").splitlines()[-40:])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Product]:
    """Start it, fill it, stop it. Django is swapped to its database meanwhile."""
    authority = Authority(folder / "certificates")
    server = authority.issue("server")
    ports = {name: _free_port() for name in ("extender", "webhook")}
    with ApiServer() as api:
        api.accounts[AGENT_TOKEN] = (settings.GPUPLANE_AGENT_SERVICE_ACCOUNT, AGENT_NODE)
        more = {
            "GPUPLANE_EXTENDER_LISTEN": f"{HOST}:{ports['extender']}",
            "GPUPLANE_WEBHOOK_LISTEN": f"{HOST}:{ports['webhook']}",
            "GPUPLANE_TLS_CERT": str(server.certificate),
            "GPUPLANE_TLS_KEY": str(server.key),
            "GPUPLANE_SECRET_KEY": settings.SECRET_KEY,  # sessions that are made here count there
            "GPUPLANE_KUBECONFIG": str(api.kubeconfig(folder / "kubeconfig")),
        }
        before = set(_guards())
        with web.running(vendor="sqlite", folder=folder, redis_url=redis.server_url("attacks"), settings=more) as app:
            (guard,) = set(_guards()) - before
            fleets.register(NODES)
            target = Target(
                main=Listener("main", int(app.url.rpartition(":")[2]), "/"),
                extender=Listener("extender", ports["extender"], "/extender/"),
                webhook=Listener("webhook", ports["webhook"], "/webhooks/", str(authority.certificate)),
                tokens={
                    "admin": app.token(),
                    "viewer": app.token(role=Role.VIEWER),
                    "service": app.token(scope=TokenScope.EXTENDER),
                    **{
                        scope.value: app.token(scope=scope)
                        for scope in (TokenScope.METRICS, TokenScope.WEBHOOKS, TokenScope.INVENTORY)
                    },
                    "agent": AGENT_TOKEN,
                    "other-agent": app.token(scope=TokenScope.AGENT, node="another"),
                    **{node: app.token(scope=TokenScope.AGENT, node=node) for node in ("attack-posts", "attack-flaps")},
                    "revoked": _revoked(),
                },
                session=f"{settings.SESSION_COOKIE_NAME}={session_of(UserFactory(role=Role.VIEWER)).session_key}",
                agent_node=AGENT_NODE,
                nodes=tuple(fleets.names(NODES)),
            )
            path = folder / "target.json"
            target.write(path)
            yield Product(target, path, app, api, _child(guard))


def _revoked() -> str:
    """An admin's token that was good once."""
    user = UserFactory(role=Role.ADMIN)
    token = tokens.issue(user)
    tokens.revoke_all(user)
    return token


def _guards() -> list[int]:
    return [int(path.read_text()) for path in session.enter().glob("web-*.guard")]


def _child(guard: int) -> int:
    """The web process itself: what the guard started."""
    (child,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    return int(child)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
