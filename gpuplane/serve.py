"""The web process: opens the doors in one event loop and serves the one application through them.

Started as `python -m gpuplane.serve` by the runner or a container. Kept true: the other doors open once the
main one has, so the application has started for all; a door that cannot open closes all of them, and so do
SIGTERM and SIGINT, bounded by GRACE_SECONDS; every door bounds connections, heads, bodies and idle time before
the application sees a request (`gpuplane.doors.limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import structlog
import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE

from gpuplane.doors import DOOR, App, Receive, Scope, Send
from gpuplane.doors.accepting import Accepting, bound
from gpuplane.doors.bounded_http import BoundedHttp
from gpuplane.doors.bounded_sockets import BoundedSocket
from gpuplane.doors.certificates import Certificates
from gpuplane.doors.connections import Connections, Place
from gpuplane.doors.limits import KEEP_ALIVE_SECONDS, MESSAGE_BYTES, Limits, limits
from gpuplane.doors.plan import Door, DoorRefused, doors
from gpuplane.start.interpreter import interpreter_set

GRACE_SECONDS = 5

log = structlog.get_logger(__name__)


class DoorServer(uvicorn.Server):
    """uvicorn's server with two things left to us: signals, which it would hand to the last door opened only, and accepting."""

    def __init__(self, config: uvicorn.Config, *, name: str, within: Limits) -> None:
        super().__init__(config)
        self._name = name
        self._limits = within
        self.opened = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open, and say so. Raises SystemExit when the application does not start or the address is taken."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        try:
            sockets = await bound(self.config.host, self.config.port, backlog=self.config.backlog)
        except OSError as error:
            log.error("door.address_refused", door=self._name, error=str(error))  # noqa: TRY400 - the words say it all
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        connections = Connections(self._name, self._limits, asyncio.get_running_loop().call_later)
        accepting = Accepting(sockets, connections=connections, factory=self._protocol, context=self.config.ssl)
        self.servers = [cast("asyncio.Server", accepting)]
        self.started = True
        self.opened.set()

    def _protocol(self, place: Place) -> BoundedHttp:
        return BoundedHttp(self.config, self.server_state, self.lifespan.state, place=place)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def behind(door: Door, application: App) -> App:
    """The application, told through which door it is asked."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope[DOOR] = door
        await application(scope, receive, send)

    return told


def server(
    door: Door,
    application: App,
    certificates: Certificates | None,
    *,
    connections: int,
    per_address: int,
    proxies: Sequence[str],
    listeners: int = 1,
) -> DoorServer:
    """A server for one door; the main one also speaks the lifespan protocol. `proxies`: whose connections are many people's."""
    config = uvicorn.Config(
        behind(door, application),
        host=door.host,
        port=door.port,
        loop="none",
        http=BoundedHttp,
        ws=BoundedSocket,
        ws_per_message_deflate=False,
        ws_max_size=MESSAGE_BYTES,
        lifespan="on" if door.name == "main" else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `gpuplane.doors.proxies` reads them, on paths of people
        forwarded_allow_ips=list(proxies),  # not uvicorn's own default, which is loopback
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=None if certificates is None else lambda _config, _default: certificates.context,
    )
    within = limits(
        connections=connections,
        per_address=per_address,
        proxies=proxies,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        listeners=listeners,
    )
    return DoorServer(config, name=door.name, within=within)


async def serve(
    planned: tuple[Door, ...], application: App, *, connections: int, per_address: int, proxies: Sequence[str]
) -> int:
    """Serve until a signal. Returns the exit status. Raises DoorRefused when TLS cannot be set up."""
    certificates = {door.name: Certificates(door.tls) for door in planned if door.tls is not None}
    servers = {
        door.name: server(
            door,
            application,
            certificates.get(door.name),
            connections=connections,
            per_address=per_address,
            proxies=proxies,
            listeners=len(planned),
        )
        for door in planned
    }
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for one in servers.values():
            one.force_exit = one.should_exit
            one.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    watches = [asyncio.create_task(one.watch()) for one in certificates.values()]
    after: DoorServer | None = None
    tasks = []
    for door in planned:
        tasks.append(asyncio.create_task(_serve_one(door, servers[door.name], after, stop)))
        after = after or servers[door.name]
    statuses = await asyncio.gather(*tasks)
    for watch in watches:
        watch.cancel()
    return max(statuses)


async def _serve_one(door: Door, one: DoorServer, after: DoorServer | None, stop: Callable[[], None]) -> int:
    """Serve one door once `after` is open. Returns the exit status."""
    if after is not None:
        await after.opened.wait()
    if one.should_exit:
        return 0
    log.info("door.opens", door=door.name, url=door.url, client_certificate=bool(door.tls and door.tls.client_ca))
    try:
        await one.serve()
    except SystemExit as error:  # uvicorn's way to say that the address is taken or the start failed
        log.error("door.cannot_open", door=door.name, url=door.url)  # noqa: TRY400 - uvicorn logged the cause
        stop()
        return error.code if isinstance(error.code, int) else 1
    finally:
        one.opened.set()
    return 0


def room_for_sockets() -> None:
    """As many open files as the system lets us have: an agent and a browser take one each, and many systems begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    """Command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from django.conf import settings

    from gpuplane.asgi import application

    try:
        planned = doors(
            host=settings.GPUPLANE_HOST,
            port=settings.GPUPLANE_PORT,
            extender_listen=settings.GPUPLANE_EXTENDER_LISTEN,
            webhook_listen=settings.GPUPLANE_WEBHOOK_LISTEN,
            certificate=settings.GPUPLANE_TLS_CERT,
            key=settings.GPUPLANE_TLS_KEY,
            client_ca=settings.GPUPLANE_CLIENT_CA,
            webhook_client_ca=settings.GPUPLANE_WEBHOOK_CLIENT_CA,
            main_tls=settings.GPUPLANE_MAIN_TLS,
            agents_only=settings.GPUPLANE_AGENTS_ONLY,
        )
        gc.freeze()  # what was loaded so far stays: looking through it again and again stops every request for 40 ms
        room_for_sockets()
        interpreter_set()
        return uvloop.run(
            serve(
                planned,
                application,
                connections=settings.GPUPLANE_CONNECTIONS,
                per_address=settings.GPUPLANE_CONNECTIONS_PER_ADDRESS,
                proxies=settings.GPUPLANE_TRUSTED_PROXIES,
            )
        )
    except DoorRefused as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
