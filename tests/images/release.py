"""A release of the chart whose pods run from the images: the containers' own commands, environments, users and mounts,
against the control plane of the cluster tests.

Not as in a cluster: all are on loopback, so web's two ports that the chart fixes are free ones, names come from a hosts
file, and redis, PostgreSQL and kube-scheduler are processes beside them. Secrets, ConfigMaps and ServiceAccounts are
mounted as the kubelet does.
"""

import base64
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis

from tests.cluster.agents import agents_pod, token_of
from tests.cluster.controlplane import chart
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.program import Program, free_ports
from tests.images.container import DATA, environment, words
from tests.images.tools import Image
from tests.servers import postgres
from tests.servers.redis import server_program

Json = dict[str, Any]
ACCOUNTS = {"web": "gpuplane", "worker": "gpuplane-worker", "watch": "gpuplane-watch"}
KUBERNETES = "/var/run/secrets/kubernetes.io/serviceaccount"
NAME = f"gpuplane.{chart.NAMESPACE}.svc"


class Release:
    """Its processes, by component: `bootstrap` to the end, the others as programs. `node`: where the agent runs."""

    def __init__(self, plane: ControlPlane, images: Mapping[str, Image], folder: Path, *, node: str) -> None:
        self.plane = plane
        self.images = images
        self.folder = folder
        self.node = node
        self.main, self.extender, self.webhook, redis_port = free_ports(4)
        self.database = f"images_{uuid.uuid4().hex}"
        self.redis_url = f"redis://127.0.0.1:{redis_port}/0"
        self.programs: list[Program] = []
        command = [*server_program(folder), "--port", str(redis_port), "--bind", "127.0.0.1"]
        self._redis = Program("redis", command, folder=folder, ready=self._redis_answers)
        self.objects = chart.render(self.values())
        self._files = {
            (one["kind"], one["metadata"]["name"]): _content(one)
            for one in chart.of_kinds(self.objects, "Secret", "ConfigMap")
        }

    def values(self) -> Json:
        """Of the chart: addresses of this machine, the images by name, and an agent without a driver."""
        server = postgres.server_url()
        return {
            "database": {"url": f"{server}/{self.database}", "pool": 10},
            "redis": {"url": self.redis_url},
            "web": {"host": "127.0.0.1"},
            "service": {"port": self.main},
            "agent": {
                "image": {"repository": "gpuplane-agent"},
                "extraEnv": [{"name": "GPUPLANE_AGENT_SOURCE", "value": "simulated:h100-8"}],
            },
            "webhooks": {"url": f"https://localhost:{self.webhook}"},
            "scheduler": {
                "kubeconfig": str(self.plane.scheduler_kubeconfig),
                "leaderElect": False,
                "extender": {"listen": f"127.0.0.1:{self.extender}"},
            },
        }

    # installing

    def install(self) -> None:
        """The chart's objects, the database migrated, everything started, web ready."""
        with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{self.database}"'.encode())
        self._redis.start()
        self.plane.namespace(chart.NAMESPACE)
        self.plane.api.apply(*chart.of_kinds(self.objects, "Namespace"))
        self.plane.api.apply(*chart.cluster_objects(self.objects))
        web = self._program("web", self._container("web"), ready=self._is_ready)
        bootstrap = self._command("web", self._container("web", "bootstrap"))
        done = subprocess.run(**bootstrap, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        web.start(wait=False)
        for name in ("worker", "watch", "beat", "agent"):
            self._program(name, self._container(name)).start(wait=False)
        web.wait_ready()
        path = self.folder / "scheduler.yaml"
        path.write_text(chart.scheduler_configuration(self.objects))
        self.scheduler = self.plane.scheduler(path, arguments=chart.scheduler_gates(self.objects))
        self.scheduler.start()

    def close(self) -> None:
        """Stop everything, and drop the database."""
        for one in reversed(self.programs):
            one.stop()
        self._redis.stop()
        with psycopg.connect(f"{postgres.server_url()}/postgres", autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{self.database}" WITH (FORCE)'.encode())

    # containers

    def _pod(self, component: str) -> Json:
        """The pod's spec that the chart renders for the component."""
        label = "app.kubernetes.io/component"
        (found,) = (
            one["spec"]["template"]["spec"]
            for one in chart.of_kinds(self.objects, "Deployment", "DaemonSet")
            if one["spec"]["template"]["metadata"]["labels"][label] == component
        )
        spec: Json = found
        return spec

    def _container(self, component: str, name: str = "") -> Json:
        spec = self._pod(component)
        (found,) = (
            one for one in (*spec.get("initContainers", ()), *spec["containers"]) if one["name"] == (name or component)
        )
        container: Json = found
        return container

    def _program(self, component: str, container: Json, **about: Any) -> Program:
        given = self._command(component, container)
        made = Program(component, given["args"], folder=self.folder, environment=lambda: given["env"], **about)
        self.programs.append(made)
        return made

    def _command(self, component: str, container: Json) -> Json:
        """`args` and `env` of a process that is this container."""
        image = self.images[container["image"].partition(":")[0]]
        context = {**self._pod(component).get("securityContext", {}), **container["securityContext"]}
        mounted = self._mounted(component, container)
        owner = context["runAsUser"], context.get("runAsGroup", context["runAsUser"])
        data = self.folder / "volumes" / component / "data"  # the pod's: bootstrap writes to it for web
        data.mkdir(parents=True, exist_ok=True)
        os.chown(data, *owner)
        words_before = words(image, mounted=mounted, data=data, user=":".join(map(str, owner)))
        command = [*words_before, *container["command"]]
        return {"args": command, "env": environment(image, self._environment(container))}

    def _environment(self, container: Json) -> dict[str, str]:
        host, _, port = self.plane.url.removeprefix("https://").partition(":")
        told = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        for one in container["env"]:
            told[one["name"]] = one["value"] if "value" in one else self._from(one["valueFrom"])
        if "GPUPLANE_WEBHOOK_LISTEN" in told:  # two ports that the chart fixes
            told |= {"GPUPLANE_PORT": str(self.main), "GPUPLANE_WEBHOOK_LISTEN": f"127.0.0.1:{self.webhook}"}
        return told

    def _from(self, source: Json) -> str:
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            return self._files["Secret", reference["name"]][reference["key"]].decode()
        return {"spec.nodeName": self.node}[source["fieldRef"]["fieldPath"]]

    def _mounted(self, component: str, container: Json) -> dict[str, Path]:
        """Path in the container → file or folder of this machine. emptyDirs are those that every container has."""
        spec = self._pod(component)
        volumes = {one["name"]: one for one in spec["volumes"]}
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {NAME}\n")
        found = {"/etc/hosts": hosts}
        for mount in container["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                assert path in ("/tmp", DATA)
            elif "hostPath" not in volume:
                found[path] = self._written(component, mount["name"], self._of(component, volume))
        if spec["automountServiceAccountToken"]:
            token = self.plane.service_account_token(chart.NAMESPACE, ACCOUNTS[component]).encode()
            ca = self.plane.authority.certificate.read_bytes()
            files = {"token": token, "ca.crt": ca, "namespace": chart.NAMESPACE.encode()}
            found[KUBERNETES] = self._written(component, "account", files)
        return found

    def _of(self, component: str, volume: Json) -> dict[str, bytes]:
        """Files of a volume from a Secret, a ConfigMap or a ServiceAccount's token."""
        if "projected" in volume:
            uid = agents_pod(self.plane.api, f"{component}-1", self.node)
            return {"token": token_of(self.plane.api, f"{component}-1", uid).encode()}
        if "secret" in volume:
            kind, name, source = "Secret", volume["secret"]["secretName"], volume["secret"]
        else:
            kind, name, source = "ConfigMap", volume["configMap"]["name"], volume["configMap"]
        return {item["path"]: self._files[kind, name][item["key"]] for item in source["items"]}

    def _written(self, component: str, name: str, files: Mapping[str, bytes]) -> Path:
        place = self.folder / "volumes" / component / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for path, content in files.items():
            (place / path).write_bytes(content)
            (place / path).chmod(0o644)
        place.chmod(0o755)
        return place

    # looking

    def _redis_answers(self) -> bool:
        client = redis.Redis.from_url(self.redis_url)
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()

    def _is_ready(self) -> bool:
        try:
            # the kubelet's probes check no certificate either
            return httpx.get(f"https://127.0.0.1:{self.main}/readyz", verify=False, timeout=10).is_success
        except httpx.TransportError:
            return False

    def logs(self) -> str:
        """The end of each, for whoever looks into a failure."""
        return json.dumps({one.name: one.tail(15).splitlines() for one in self.programs}, indent=1)


def _content(one: Json) -> dict[str, bytes]:
    decode = base64.b64decode if one["kind"] == "Secret" else str.encode
    plain = {key: value.encode() for key, value in one.get("stringData", {}).items()}
    return {**{key: decode(value) for key, value in one.get("data", {}).items()}, **plain}
