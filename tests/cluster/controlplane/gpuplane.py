"""gpuplane as it runs in production: redis, web (one or more), worker, watch and beat, each a process of its own.

Invariants: the doors' addresses stay the same over restarts and replacements, so a scheduler and webhooks that were
configured once find the next gpuplane too.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis

from gpuplane.run import procfile
from tests.certificates import Authority, Pair
from tests.cluster.controlplane.program import ROOT, Program, ProgramFailed, free_ports, listens
from tests.servers import postgres

Json = dict[str, Any]
WORKERS = ("worker", "watch", "beat")
ACCOUNTS = ("web", "worker", "watch")
"""Processes that speak to the API server, each as a ServiceAccount of its own."""


@dataclass(frozen=True)
class Doors:
    """The addresses under which gpuplane is known to the cluster, and their certificates. Ports of loopback."""

    main: int
    extender: int
    webhook: int
    serving: Pair
    authority: Authority
    tls: bool = False
    """The extender listener: HTTPS with a client certificate, else plain HTTP on loopback."""

    @classmethod
    def fresh(cls, authority: Authority, *, tls: bool = False) -> "Doors":
        """Free ports and a certificate for them."""
        main, extender, webhook = free_ports(3)
        return cls(main, extender, webhook, authority.issue("gpuplane"), authority, tls)

    @property
    def extender_url(self) -> str:
        """`urlPrefix` of the scheduler's extender entry."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.extender}/extender"

    @property
    def webhook_url(self) -> str:
        """What the webhooks' paths are appended to."""
        return f"https://127.0.0.1:{self.webhook}"


class Gpuplane:
    """The processes of one installation; its data lie in `folder`. `vendor`: sqlite or postgresql."""

    def __init__(
        self,
        folder: Path,
        *,
        kubeconfigs: Mapping[str, Path],
        doors: Doors,
        vendor: str = "sqlite",
        replicas: int = 1,
        workers: int = 1,
        settings: Mapping[str, str] | None = None,
        fronted: bool = False,
    ) -> None:
        """`kubeconfigs`: of ACCOUNTS. `workers`: of each kind: that many beats, workers and watches.

        `fronted`: the extender listens elsewhere (`extender_behind`), and the caller puts something at its address.
        """
        self.folder = folder
        self.vendor = vendor
        self.doors = doors
        self.data = folder / "data"
        self._kubeconfigs = kubeconfigs
        self._settings = dict(settings or {})
        self.database_url = ""
        self.rest = httpx.Client(base_url=f"http://127.0.0.1:{doors.main}", timeout=30)
        commands = procfile.read(ROOT / "Procfile")
        self.redis = self._program("redis", commands["redis"], ready=self._redis_answers)
        self._ports = [(doors.main, free_ports(1)[0] if fronted else doors.extender, doors.webhook)]
        self.balancers: list[Program] = []
        if replicas > 1:
            ports = free_ports(3 * replicas)
            self._ports = [(ports[3 * n], ports[3 * n + 1], ports[3 * n + 2]) for n in range(replicas)]
            for name, door in (("main", 0), ("extender", 1), ("webhook", 2)):
                self.balancers.append(self._balancer(name, door))
        self.webs = [self._web(commands["web"], number) for number in range(replicas)]
        self.worker, self.watch, self.beat = (self._program(name, commands[name]) for name in WORKERS)
        self.more = [
            self._program(f"{name}-{number}", commands[name]) for number in range(1, workers) for name in WORKERS
        ]

    @property
    def programs(self) -> list[Program]:
        """All of them, in the order of their start."""
        return [self.redis, *self.webs, *self.balancers, self.worker, self.watch, self.beat, *self.more]

    @property
    def web(self) -> Program:
        """The first web process."""
        return self.webs[0]

    def of_replica(self, number: int, path: str) -> httpx.Response:
        """What this web process itself answers to a GET, past the balancer."""
        return httpx.get(f"http://127.0.0.1:{self._ports[number][0]}{path}", timeout=30)

    @property
    def extender_behind(self) -> str:
        """Where the first web process' extender really listens."""
        return f"http://127.0.0.1:{self._ports[0][1]}"

    def start(self) -> None:
        """Prepare the database and start everything; returns when every web process is ready."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self.redis.start()
        for one in (*self.webs, *self.balancers):
            one.start(wait=False)
        for one in (self.worker, self.watch, self.beat, *self.more):
            one.start(wait=False)
        for one in (*self.webs, *self.balancers):
            one.wait_ready()

    def configure(self, **settings: str) -> None:
        """Settings that processes have from their next start on."""
        self._settings |= settings

    def stop(self) -> None:
        """Stop everything, the last first."""
        for one in reversed(self.programs):
            one.stop()

    def close(self) -> None:
        """Stop, and drop the database."""
        self.stop()
        self.rest.close()
        self._drop()

    def prepare(self) -> None:
        """Database made and migrated, accounts made, the REST client signed in."""
        if self.vendor == "postgresql" and not self.database_url:
            name = f"cluster_{uuid.uuid4().hex}"
            _administer(f'CREATE DATABASE "{name}"')
            self.database_url = f"{postgres.server_url()}/{name}"
        done = self.manage("bootstrap")
        if done.returncode:
            raise ProgramFailed(f"bootstrap failed:\n{done.stdout}{done.stderr}")
        credentials = json.loads((self.data / "credentials.json").read_text())
        self.rest.headers["Authorization"] = f"Bearer {credentials['api_token']}"

    def reinstall(self) -> None:
        """Stop, forget everything that was known, start anew."""
        self.stop()
        self._drop()
        shutil.rmtree(self.data)
        self.start()

    def environment(self, process: str, main: int, extender: int, webhook: int) -> dict[str, str]:
        """Of a process of this kind whose doors are these."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("GPUPLANE_") and key != "DJANGO_SETTINGS_MODULE"
        }
        return {
            **kept,
            "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]),
            "GPUPLANE_DATA_DIR": str(self.data),
            "GPUPLANE_DATABASE_URL": self.database_url,
            "GPUPLANE_REDIS_URL": f"unix://{self.data / 'redis.sock'}",
            "GPUPLANE_SIMULATE": "0",
            # who has no rights is not to find any: the name must be there for the beat to send the cluster's tasks
            "GPUPLANE_KUBECONFIG": str(self._kubeconfigs.get(process, self.folder / "no-account")),
            "GPUPLANE_PORT": str(main),
            "GPUPLANE_EXTENDER_LISTEN": f"{'https://' if self.doors.tls else ''}127.0.0.1:{extender}",
            "GPUPLANE_WEBHOOK_LISTEN": f"127.0.0.1:{webhook}",
            "GPUPLANE_TLS_CERT": str(self.doors.serving.certificate),
            "GPUPLANE_TLS_KEY": str(self.doors.serving.key),
            "GPUPLANE_CLIENT_CA": str(self.doors.authority.certificate),
            "GPUPLANE_WEBHOOK_CLIENT_CA": str(self.doors.authority.certificate),
            **self._settings,
        }

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`manage.py` with these words, as it would be run in the worker's pod."""
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment("worker", *self._ports[0]),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def _web(self, command: list[str], number: int) -> Program:
        ports = self._ports[number]
        name = "web" if number == 0 else f"web-{number}"
        return self._program(name, command, ports=ports, ready=lambda: _ready(ports[0]))

    def _balancer(self, name: str, door: int) -> Program:
        port = (self.doors.main, self.doors.extender, self.doors.webhook)[door]
        targets = [str(ports[door]) for ports in self._ports]
        command = ["python", "-m", "tests.cluster.controlplane.balancer", str(port), *targets]
        return self._program(f"balancer-{name}", command, ready=lambda: listens(port))

    def _program(
        self,
        name: str,
        command: list[str],
        *,
        ports: tuple[int, int, int] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> Program:
        own = ports or (self.doors.main, self.doors.extender, self.doors.webhook)
        process = name.partition("-")[0]
        return Program(
            name, command, folder=self.folder, environment=lambda: self.environment(process, *own), ready=ready
        )

    def _redis_answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.data / "redis.sock"))
        try:
            return bool(client.ping())
        except (redis.ConnectionError, OSError):
            return False
        finally:
            client.close()

    def _drop(self) -> None:
        if self.database_url:
            name = self.database_url.rpartition("/")[2]
            self.database_url = ""
            _administer(f'DROP DATABASE "{name}" WITH (FORCE)')


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _administer(statement: str) -> None:
    with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
        connection.execute(statement.encode())
