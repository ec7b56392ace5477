"""etcd, kube-apiserver, kube-controller-manager, KWOK and kube-scheduler as one control plane on loopback.

Started by the cluster tests' fixtures, by `make cluster-up` and by `make bench-cluster`. Authorisation is RBAC,
ServiceAccounts and their tokens are real, nodes and pods are played by KWOK. Each of the flags was tried.
"""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.certificates import Authority, token_keys
from tests.cluster.controlplane.api import Api, ApiRefused, Json
from tests.cluster.controlplane.objects import STAGES
from tests.cluster.controlplane.program import Program, free_ports, listens
from tests.cluster.controlplane.tools import program

ADMIN_TOKEN = "the-administrator-of-the-tests"
SCHEDULER_TOKEN = "the-schedulers-of-the-tests"
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
NODE_GRACE_SECONDS = 16
"""After this long without a sign of life a node is NotReady; Kubernetes' own default is 50."""


class ControlPlane:
    """A cluster whose files, logs and data are in `folder`. `start()` returns when it schedules nothing yet and answers
    everything.

    `kube-scheduler` is not started here: its configuration names gpuplane's door, see `scheduler()`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "pki")
        (
            self.port,
            self._etcd_port,
            self._peer_port,
            self._manager_port,
            self._kwok_port,
        ) = free_ports(5)
        self.url = f"https://127.0.0.1:{self.port}"
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.admin_kubeconfig = self.kubeconfig("admin", ADMIN_TOKEN)
        self.scheduler_kubeconfig = self.kubeconfig("kube-scheduler", SCHEDULER_TOKEN)
        self.manager = self._manager()
        self.kwok = self._kwok()
        self.schedulers: list[Program] = []
        self.api = Api(url=self.url, ca=self.authority.certificate, token=ADMIN_TOKEN, kubeconfig=self.admin_kubeconfig)

    @property
    def programs(self) -> list[Program]:
        """All of them, in the order of their start."""
        return [self.etcd, self.apiserver, self.manager, self.kwok, *self.schedulers]

    def start(self) -> None:
        """Start everything but the scheduler."""
        self.etcd.start()
        self.apiserver.start()
        self.manager.start(wait=False)
        self.kwok.start(wait=False)
        self.manager.wait_ready()
        self.kwok.wait_ready()

    def stop(self) -> None:
        """Stop everything, the last first."""
        for one in reversed(self.programs):
            one.stop()
        self.api.close()

    def kubeconfig(self, user: str, token: str, *, url: str = "") -> Path:
        """A kubeconfig file for the bearer of this token; `url`: another address of the API server, such as a
        proxy's.
        """
        server: Json = {"server": url or self.url}
        if server["server"].startswith("https://"):
            server["certificate-authority-data"] = base64.b64encode(self.authority.certificate.read_bytes()).decode()
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster-tests", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "cluster-tests", "user": user}}],
            "current-context": "here",
        }
        path = self.folder / f"{user}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(body, indent=1))
        return path

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of the ServiceAccount by the TokenRequest API, good for a day."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        return str(self.api.create(path, body)["status"]["token"])

    def user(self, namespace: str, service_account: str) -> Api:
        """The API server as this ServiceAccount sees it."""
        token = self.service_account_token(namespace, service_account)
        kubeconfig = self.kubeconfig(f"{namespace}-{service_account}", token)
        return Api(url=self.url, ca=self.authority.certificate, token=token, kubeconfig=kubeconfig)

    def namespace(self, name: str) -> None:
        """Make a namespace in which pods can be created (its default ServiceAccount is there)."""
        with suppress(ApiRefused):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        with suppress(ApiRefused):
            # the controller manager makes it as well, a moment later
            self.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})

    def scheduler(
        self,
        configuration: Path,
        *,
        name: str = "kube-scheduler",
        kubeconfig: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> Program:
        """A kube-scheduler with this KubeSchedulerConfiguration, to be started by the caller and stopped with
        the rest.
        """
        (port,) = free_ports(1)
        own = kubeconfig or self.admin_kubeconfig
        command = [
            program("kube-scheduler"),
            f"--config={configuration}",
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--v=2",
            *arguments,
        ]
        made = Program(name, command, folder=self.folder, ready=lambda: self._healthy(port, "/healthz"))
        self.schedulers.append(made)
        return made

    def forget_scheduler(self, scheduler: Program) -> None:
        """Stop it for good."""
        scheduler.stop()
        self.schedulers.remove(scheduler)

    def compact(self) -> None:
        """Have etcd forget all history, so that watches from an old version are answered 410."""
        base = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        found = _post(f"{base}/range", {"key": "AA==", "limit": 1})
        _post(f"{base}/compaction", {"revision": found["header"]["revision"], "physical": True})

    def _etcd(self) -> Program:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            program("etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--log-level=warn",
        ]
        return Program("etcd", command, folder=self.folder, ready=lambda: listens(self._etcd_port))

    def _apiserver(self) -> Program:
        serving = self.authority.issue("kube-apiserver", hosts=("127.0.0.1", "localhost", "10.254.0.1"))
        tokens = token_keys(self.authority.folder)
        admins = self.folder / "tokens.csv"
        admins.touch(mode=0o600)
        admins.write_text(
            f'{ADMIN_TOKEN},administrator,administrator,"system:masters"\n'
            f"{SCHEDULER_TOKEN},system:kube-scheduler,system:kube-scheduler\n"
        )
        command = [
            program("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--token-auth-file={admins}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--service-cluster-ip-range=10.254.0.0/24",
            "--max-requests-inflight=3000",
            "--max-mutating-requests-inflight=1500",
            "--event-ttl=30m",
            "--profiling=false",
            "--delete-collection-workers=16",
            "--endpoint-reconciler-type=none",
            f"--admission-control-config-file={self._admission()}",
        ]
        return Program("kube-apiserver", command, folder=self.folder, ready=lambda: self._healthy(self.port, "/readyz"))

    def _admission(self) -> Path:
        """A configuration by which the API server shows webhooks who it is, as docs/operations.md has it."""
        pair = self.authority.issue("apiserver-to-webhooks")
        clients = self.folder / "webhook-clients.json"
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        clients.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}))
        kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration"}
        plugins = [
            {"name": name, "configuration": {**kind, "kubeConfigFile": str(clients)}}
            for name in ("ValidatingAdmissionWebhook", "MutatingAdmissionWebhook")
        ]
        path = self.folder / "admission.json"
        body = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins}
        path.write_text(json.dumps(body))
        return path

    def _manager(self) -> Program:
        command = [
            program("kube-controller-manager"),
            f"--kubeconfig={self.admin_kubeconfig}",
            f"--authentication-kubeconfig={self.admin_kubeconfig}",
            f"--authorization-kubeconfig={self.admin_kubeconfig}",
            f"--service-account-private-key-file={self.authority.folder / 'service-accounts.key'}",
            f"--root-ca-file={self.authority.certificate}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager_port}",
            "--leader-elect=false",
            "--node-monitor-period=2s",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
        ]
        return Program(
            "kube-controller-manager",
            command,
            folder=self.folder,
            ready=lambda: self._healthy(self._manager_port, "/healthz"),
        )

    def _kwok(self) -> Program:
        stages = self.folder / "stages.yaml"
        stages.write_text(STAGES)
        command = [
            program("kwok"),
            f"--kubeconfig={self.admin_kubeconfig}",
            f"--config={stages}",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
            "--node-ip=127.0.0.1",
            f"--server-address=127.0.0.1:{self._kwok_port}",
        ]
        return Program("kwok", command, folder=self.folder, ready=lambda: listens(self._kwok_port))

    def _healthy(self, port: int, path: str) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the schedulers' and managers' certificates are their own
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False


def _post(url: str, body: Json) -> Json:
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: Json = json.load(answer)
        return found
