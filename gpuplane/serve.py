"""The web process: opens the listeners in one event loop and serves the one application through them.

Started as `python -m gpuplane.serve` by the runner or a container. Invariants: the other listeners open once the main
one has, so the application has started for all; a listener that cannot open closes all of them, and so do SIGTERM and
SIGINT, bounded by GRACE_SECONDS; every listener bounds connections, heads, bodies and idle time before the application
sees a request (`gpuplane.listeners.limits`).
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
from collections.abc import Callable, Iterator
from typing import cast

import structlog
import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE

from gpuplane.data_folder import be_writable
from gpuplane.errors import refusals_end_the_program
from gpuplane.listeners import LISTENER, App, Receive, Scope, Send
from gpuplane.listeners.accepting import Accepting, listening_sockets
from gpuplane.listeners.bounded_http import BoundedHttp
from gpuplane.listeners.bounded_sockets import BoundedSocket
from gpuplane.listeners.certificates import Certificates
from gpuplane.listeners.connections import Connections, ConnectionSlot
from gpuplane.listeners.limits import KEEP_ALIVE_SECONDS, MESSAGE_BYTES, Limits, listener_limits
from gpuplane.listeners.plan import ListenAddress, ListenAddressRefused, listen_addresses
from gpuplane.start.allocator import tune_allocator

GRACE_SECONDS = 5

log = structlog.get_logger(__name__)


class ListenerServer(uvicorn.Server):
    """uvicorn's server, without its signal handlers, which only the last one would keep, and with `Accepting`."""

    def __init__(self, config: uvicorn.Config, *, name: str, limits: Limits) -> None:
        super().__init__(config)
        self._name = name
        self._limits = limits
        self.opened = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open. Raises SystemExit when the application does not start or the address is taken."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        try:
            sockets = await listening_sockets(self.config.host, self.config.port, backlog=self.config.backlog)
        except OSError as error:
            log.error(  # noqa: TRY400 - no traceback: the error's text says it all
                "listener.address_refused", listener=self._name, error=str(error)
            )
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        connections = Connections(self._name, self._limits, asyncio.get_running_loop().call_later)
        accepting = Accepting(sockets, connections=connections, factory=self._protocol, context=self.config.ssl)
        self.servers = [cast("asyncio.Server", accepting)]
        self.started = True
        self.opened.set()

    def _protocol(self, slot: ConnectionSlot) -> BoundedHttp:
        return BoundedHttp(self.config, self.server_state, self.lifespan.state, slot=slot)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def behind(listener: ListenAddress, application: App) -> App:
    """The application, with the listener in its scopes."""

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        scope[LISTENER] = listener
        await application(scope, receive, send)

    return listening


def server(
    listener: ListenAddress, application: App, certificates: Certificates | None, limits: Limits
) -> ListenerServer:
    """A server for one listener; the main one also speaks the lifespan protocol."""
    config = uvicorn.Config(
        behind(listener, application),
        host=listener.host,
        port=listener.port,
        loop="none",
        http=BoundedHttp,
        ws=BoundedSocket,
        ws_per_message_deflate=False,
        ws_max_size=MESSAGE_BYTES,
        lifespan="on" if listener.name == "main" else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `gpuplane.listeners.proxies` reads them, on paths of people
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=None if certificates is None else lambda _config, _default: certificates.context,
    )
    return ListenerServer(config, name=listener.name, limits=limits)


async def serve(
    planned: tuple[ListenAddress, ...], application: App, limits: Limits, *, stopping: Callable[[], None]
) -> int:
    """Serve until a signal; then `stopping` is called first. Returns the exit status. Raises ListenAddressRefused
    when TLS cannot be set up.
    """
    certificates = {one.name: Certificates(one.tls) for one in planned if one.tls is not None}
    servers = [server(one, application, certificates.get(one.name), limits) for one in planned]

    def stop() -> None:
        stopping()
        for one in servers:
            one.force_exit = one.should_exit
            one.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    watches = [asyncio.create_task(one.watch()) for one in certificates.values()]
    main = servers[0]
    statuses = await asyncio.gather(
        *(
            _serve_one(listener, one, None if one is main else main, stop)
            for listener, one in zip(planned, servers, strict=True)
        )
    )
    for watch in watches:
        watch.cancel()
    return max(statuses)


async def _serve_one(
    listener: ListenAddress, one: ListenerServer, after: ListenerServer | None, stop: Callable[[], None]
) -> int:
    """Serve one listener once `after` is open. Returns the exit status."""
    if after is not None:
        await after.opened.wait()
    if one.should_exit:
        return 0
    tls = listener.tls
    log.info("listener.opens", listener=listener.name, url=listener.url, client_certificate=bool(tls and tls.client_ca))
    try:
        await one.serve()
    except SystemExit as error:  # uvicorn's way to say that the address is taken or the start failed
        log.error(  # noqa: TRY400 - uvicorn logged the cause
            "listener.cannot_open", listener=listener.name, url=listener.url
        )
        stop()
        return error.code if isinstance(error.code, int) else 1
    finally:
        one.opened.set()
    return 0


def raise_open_files() -> int:
    """Raise the limit of open files to what the system allows, and return it: each agent and browser takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main() -> int:
    """Command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from django.conf import settings

    with refusals_end_the_program():
        be_writable(settings.GPUPLANE_DATA_DIR)
    from gpuplane.asgi import application
    from gpuplane.start.requests import end_waits

    try:
        planned = listen_addresses(settings, port=settings.GPUPLANE_PORT)
        gc.freeze()  # what was loaded so far stays: each full collection of it would stop every request for 40 ms
        bounds = listener_limits(
            connections=settings.GPUPLANE_CONNECTIONS,
            per_address=settings.GPUPLANE_CONNECTIONS_PER_ADDRESS,
            proxies=settings.GPUPLANE_TRUSTED_PROXIES,
            open_files=raise_open_files(),
            listeners=len(planned),
        )
        tune_allocator()
        return uvloop.run(serve(planned, application, bounds, stopping=end_waits))
    except ListenAddressRefused as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
