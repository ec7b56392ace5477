"""A process that has imported the packages of others and forks a process for each request: `python -m MODULE` without
most of a second of imports.

Started once a session by `tests.servers.forked`, as a script. It imports nothing of the product and no settings, so a
forked process reads its own environment, settings and database as any new process does. One request a connection on
the Unix socket of its argument: a line of JSON (`Request`) with three file descriptors for standard input, output and
errors; the answers are lines, the process id and later the exit status as subprocess has it.

Invariants: a forked process dies with this one, and when the connection that asked for it closes.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

PACKAGES = (
    "asgiref.sync", "celery", "celery.app.base", "channels.layers", "concurrent.futures.thread", "cryptography.x509",
    "django.contrib.postgres.fields", "django.core.management", "django.core.handlers.asgi", "django.db.models",
    "django.db.backends.postgresql.base", "django.db.backends.sqlite3.base", "django.template.defaultfilters",
    "django.urls", "environ", "httptools", "kombu", "kubernetes.config", "msgspec.json", "numpy", "orjson",
    "prometheus_client", "psycopg", "psycopg_pool", "pydantic", "redis.asyncio", "rest_framework.exceptions",
    "rest_framework.fields", "sqlparse", "structlog", "uvicorn", "uvloop", "websockets", "whitenoise.middleware",
    "yaml",
)  # fmt: skip
"""Imported before the first fork; none of them reads Django's settings at import."""
_REQUEST_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


class Request(TypedDict):
    """What runs: `arguments` begin with the module, or with `-c` and a program."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    new_session: bool
    """Linux shares the CPU by sessions first: what such a process starts at a low priority gives way to it alone."""


@dataclass
class _Child:
    process_id: int
    ended: int
    """Descriptor that is readable when the process has ended."""
    connection: socket.socket


def main() -> None:
    """Serve until a signal; in a forked process, run what was asked for and end with its status."""
    for name in PACKAGES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here is shared by all: collections of the forked ones leave it alone
    asked = _serve(sys.argv[1])
    sys.argv = asked["arguments"]
    paths = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:0] = [asked["folder"], *(path for path in paths if path)]
    if sys.argv[0] == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _serve(path: str) -> Request:
    """Fork for each request; returns in the forked processes alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)  # who finds it is served
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    parent = os.getpid()
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection = listener.accept()[0]
                asked = _fork(connection, selector)
                if os.getpid() != parent:
                    assert asked is not None
                    return asked
            elif isinstance(key.data, _Child):
                _met(key, selector)


def _fork(connection: socket.socket, selector: selectors.BaseSelector) -> Request | None:
    """The request, in the process that is forked for it; None in this one."""
    data, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    while not data.endswith(b"\n"):
        part = connection.recv(_REQUEST_BYTES)
        if not part:  # the client left
            connection.close()
            return None
        data += part
    asked: Request = json.loads(data)
    server = os.getpid()
    process_id = os.fork()
    if process_id:
        for stream in streams:
            os.close(stream)
        child = _Child(process_id, os.pidfd_open(process_id), connection)
        selector.register(child.ended, selectors.EVENT_READ, child)
        selector.register(connection, selectors.EVENT_READ, child)
        _tell(connection, process_id)
        return None
    _become(asked, streams, server)
    for key in list(selector.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
    selector.close()
    connection.close()
    return asked


def _become(asked: Request, streams: list[int], server: int) -> None:
    """Take on the standard streams, environment and folder of a new process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    if asked["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number, inheritable=True)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])


def _met(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    """A process has ended, or nobody wants it any more."""
    child: _Child = key.data
    if key.fileobj is child.connection:
        if child.connection.fileno() < 0:  # the process has ended meanwhile
            return
        selector.unregister(child.connection)
        child.connection.close()
        signal.pidfd_send_signal(child.ended, signal.SIGKILL)
        return
    selector.unregister(child.ended)
    os.close(child.ended)
    _, status = os.waitpid(child.process_id, 0)
    if child.connection.fileno() >= 0:
        selector.unregister(child.connection)
        _tell(child.connection, os.waitstatus_to_exitcode(status))
        child.connection.close()


def _tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(b"%d\n" % number)
    except OSError:
        return  # it left; its end of the connection says so next


if __name__ == "__main__":
    main()
