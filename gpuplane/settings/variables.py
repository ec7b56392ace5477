"""Every `GPUPLANE_*` environment variable: name, kind, meaning, default. Read once at start.

`docs/settings.md` is generated from this table (`manage.py settings_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.errors import BadSetting
from gpuplane.settings.kinds import (
    ADDRESS,
    DIRECTORY,
    FLAG,
    IMAGE,
    LISTEN,
    NAME,
    NAMESPACE,
    OBJECT_NAME,
    OBJECT_NAMES,
    OIDC,
    OIDC_SECRETS,
    PATH,
    PROXIES,
    SECRET,
    TEXT,
    TOLERATIONS,
    URL,
    WEBHOOK_LISTEN,
    WORDS,
    Kind,
    one_of,
    whole,
)


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable."""

    name: str
    kind: Kind
    meaning: str
    default: str = ""


VARIABLES: tuple[Variable, ...] = (
    Variable("GPUPLANE_DATA_DIR", PATH, "folder of the embedded database, Redis, logs and credentials", "var"),
    Variable("GPUPLANE_HOST", ADDRESS, "address of the main listener", "127.0.0.1"),
    Variable(
        "GPUPLANE_PORT",
        whole("port", 0, 65535),
        "port of the main listener: pages, REST, and the cluster's paths with a bearer token",
        "8000",
    ),
    Variable(
        "GPUPLANE_EXTENDER_LISTEN",
        LISTEN,
        "a listener for `/extender/` only; loopback without a scheme is plain HTTP without credentials, anything else "
        "HTTPS with a client certificate",
    ),
    Variable("GPUPLANE_WEBHOOK_LISTEN", WEBHOOK_LISTEN, "a listener for `/webhooks/` only, TLS"),
    Variable("GPUPLANE_TLS_CERT", PATH, "certificate (chain) of the TLS listeners, reloaded when it changes"),
    Variable("GPUPLANE_TLS_KEY", PATH, "its private key"),
    Variable("GPUPLANE_CLIENT_CA", PATH, "CA of the client certificates that the `https://` extender listener accepts"),
    Variable(
        "GPUPLANE_WEBHOOK_CLIENT_CA",
        PATH,
        "CA of the client certificate that the webhook listener requires, the API server's; empty: it requires "
        "none, and reads the pod of a Binding only if the Binding names the pod's UID",
    ),
    Variable(
        "GPUPLANE_MAIN_TLS",
        FLAG,
        "the main listener uses TLS, with the certificate of the TLS listeners; not under `make run`",
        "0",
    ),
    Variable(
        "GPUPLANE_AGENTS_ONLY",
        FLAG,
        "this web process serves agents, probes and `/metrics` alone, and calls the API server only to review "
        "agents' tokens; not under `make run`",
        "0",
    ),
    Variable(
        "GPUPLANE_DATABASE_URL",
        URL,
        "`postgres://user:password@host/name`, where libpq's parameters may follow (`?sslmode=verify-full`); empty: "
        "SQLite in the data folder",
    ),
    Variable(
        "GPUPLANE_DATABASE_POOL",
        whole("number", 2, 200),
        "maximum PostgreSQL connections in the pool of one process; pages and REST leave 22 of them to filter, bind, "
        "agents and inference requests",
        "30",
    ),
    Variable("GPUPLANE_REDIS_URL", URL, "`redis://…` or `unix://…`; empty: the embedded Redis of the data folder"),
    Variable(
        "GPUPLANE_EMBEDDED",
        FLAG,
        "0: nothing starts without GPUPLANE_DATABASE_URL and GPUPLANE_REDIS_URL; the images set it, since processes "
        "in containers share no data folder",
        "1",
    ),
    Variable(
        "GPUPLANE_KUBECONFIG",
        Kind("path", str.strip),
        "the cluster to use; `in-cluster` inside a pod; empty: no Kubernetes",
    ),
    Variable("GPUPLANE_NAMESPACE", NAME, "namespace of the leases, created if missing", "gpuplane-system"),
    Variable(
        "GPUPLANE_SERVICE_ACCOUNT",
        WORDS,
        "user names of gpuplane's processes that bind (web and worker) at the API server; only they may write "
        "results and bind GPU pods",
        "system:serviceaccount:gpuplane-system:gpuplane,system:serviceaccount:gpuplane-system:gpuplane-worker",
    ),
    Variable(
        "GPUPLANE_TRUSTED_USERS",
        WORDS,
        "further users that may write result annotations, such as the scheduler of another dialect",
    ),
    Variable(
        "GPUPLANE_AGENT_SERVICE_ACCOUNT",
        TEXT,
        "the ServiceAccount of agents: a token bound to an agent's pod is valid for that pod's node",
        "system:serviceaccount:gpuplane-system:gpuplane-agent",
    ),
    Variable(
        "GPUPLANE_AGENT_AUDIENCE",
        TEXT,
        "audience of ServiceAccount tokens: those of agents, and those of callers of REST",
        "gpuplane",
    ),
    Variable(
        "GPUPLANE_SCHEDULER_NAME",
        TEXT,
        "`spec.schedulerName` of the kube-scheduler that calls gpuplane; pods that are taken over get it",
        "gpu-scheduler",
    ),
    Variable(
        "GPUPLANE_GUARD",
        one_of("everywhere", "ours"),
        "which pods' Bindings by other users the webhook refuses: those of all pods that request devices "
        "(`everywhere`), or, during a takeover, only those of pods that name gpuplane's scheduler or a GpuClaim "
        "(`ours`)",
        "everywhere",
    ),
    Variable(
        "GPUPLANE_EXTENDER_MODE",
        one_of("decisive", "advisory"),
        "`decisive`: filter returns the single best node and holds its devices; `advisory`: every feasible node",
        "decisive",
    ),
    Variable(
        "GPUPLANE_VISIBLE_DEVICES",
        one_of("uuid", "index"),
        "how pods by GpuClaim that an earlier version admitted, with `CUDA_VISIBLE_DEVICES` alone, see their "
        "devices: `uuid` or `index`; with `NVIDIA_VISIBLE_DEVICES`, which every pod gets now, both contain UUIDs",
        "uuid",
    ),
    Variable(
        "GPUPLANE_SHARE",
        one_of("gpupack", "gpuspread"),
        "shares are placed on the fullest device that fits (`gpupack`) or the emptiest (`gpuspread`)",
        "gpupack",
    ),
    Variable(
        "GPUPLANE_ISOLATION",
        one_of("none", "mps", "hami-core"),
        "how shares of pods without the annotation `gpu.scheduling/isolation` are kept to their amounts: not at all, "
        "by CUDA MPS or by HAMi-core, which the nodes have to provide",
        "none",
    ),
    Variable(
        "GPUPLANE_MPS_PIPE_DIRECTORY",
        DIRECTORY,
        "pipe directory of the nodes' MPS control daemons, which is mounted into pods with isolation `mps`",
        "/tmp/nvidia-mps",  # noqa: S108 - the MPS control daemon's own default
    ),
    Variable(
        "GPUPLANE_MPS_SHM_DIRECTORY",
        DIRECTORY,
        "shared memory of the nodes' MPS control daemons, which is mounted at `/dev/shm` of such pods",
        "/dev/shm",  # noqa: S108 - of the nodes
    ),
    Variable(
        "GPUPLANE_HAMI_CORE_DIRECTORY",
        DIRECTORY,
        "directory of the nodes with HAMi-core's `libvgpu.so`, which is mounted into pods with isolation `hami-core`",
        "/usr/local/vgpu",
    ),
    Variable(
        "GPUPLANE_COUNT_NATIVE",
        FLAG,
        "pods by `nvidia.com/gpu` carry one `gpu.scheduling/pods` as all others do, so that they and pods with "
        "claims preempt each other; node autoscalers must then be configured with that resource",
        "0",
    ),
    Variable(
        "GPUPLANE_NATIVE_MODE",
        one_of("exclusive", "device-plugin"),
        "mode of the nodes for pods by `nvidia.com/gpu` that do not select one by `gpu.scheduling/mode`: "
        "`exclusive`, or `device-plugin`, where kubelets choose the devices",
        "exclusive",
    ),
    Variable(
        "GPUPLANE_GPU_SPLIT",
        whole("number", 1, 100),
        "how many `nvidia.com/gpu` a node in mode exclusive advertises for each GPU: more than one where pods "
        "share GPUs in HAMi's dialect, each of which counts as one; pods by `nvidia.com/gpu` are then counted as "
        "with `GPUPLANE_COUNT_NATIVE`",
        "1",
    ),
    Variable(
        "GPUPLANE_RESERVATION_NAMESPACE",
        NAMESPACE,
        "namespace of the pods that reserve GPUs on nodes in mode device-plugin, created if missing; no other pods "
        "belong there",
        "gpuplane-reservation",
    ),
    Variable(
        "GPUPLANE_RESERVATION_IMAGE",
        IMAGE,
        "image of these pods; they run `python -m agent.reserve`, which gpuplane's own image contains",
        "gpuplane",
    ),
    Variable(
        "GPUPLANE_RESERVATION_PULL_SECRETS",
        OBJECT_NAMES,
        "Secrets of that namespace with which the image is pulled",
    ),
    Variable(
        "GPUPLANE_RESERVATION_RUNTIME_CLASS",
        OBJECT_NAME,
        "RuntimeClass of these pods, which has to show the container its GPUs, such as `nvidia`; `none`: the node's "
        "default",
        "none",
    ),
    Variable(
        "GPUPLANE_RESERVATION_PRIORITY_CLASS",
        OBJECT_NAME,
        "PriorityClass of these pods; `none`: the cluster's default, and a node short of memory may evict them",
        "system-node-critical",
    ),
    Variable(
        "GPUPLANE_RESERVATION_TOLERATIONS",
        TOLERATIONS,
        "tolerations of these pods as a JSON list; the default tolerates every taint",
        '[{"operator": "Exists"}]',
    ),
    Variable(
        "GPUPLANE_RESERVATION_SECONDS",
        whole("seconds", 1, 600),
        "how long after its creation such a pod may take to name its GPU; then it is deleted and the binds that wait "
        "for it fail",
        "30",
    ),
    Variable(
        "GPUPLANE_SPARE_GROUPS",
        whole("number", 0, 64),
        "how many shared GPUs without pods stay reserved on each node in mode device-plugin, so that the next pod "
        "need not wait for a reservation; nobody else can use them",
        "0",
    ),
    Variable("GPUPLANE_HOLD_SECONDS", whole("seconds", 1, 3600), "lifetime of a hold", "30"),
    Variable(
        "GPUPLANE_LONG_HOLD_SECONDS",
        whole("seconds", 1, 7200),
        "lifetime of a hold if the pod has unbound volume or resource claims",
        "660",
    ),
    Variable(
        "GPUPLANE_COLLECT_SECONDS",
        whole("seconds", 1, 30),
        "interval of garbage collection; at most 30 satisfies LEASE-4",
        "10",
    ),
    Variable(
        "GPUPLANE_RELOAD_SECONDS",
        whole("seconds", 5, 3600),
        "interval of the full reload that checks the snapshot in memory",
        "60",
    ),
    Variable(
        "GPUPLANE_MINUTES_KEPT_HOURS", whole("hours", 1, 24 * 366), "retention of the devices' history by minute", "48"
    ),
    Variable(
        "GPUPLANE_SCALE_AFTER_SECONDS",
        whole("seconds", 0, 3600),
        "a pod that lacks nothing but devices for so long has a node made for it by Karpenter",
        "2",
    ),
    Variable(
        "GPUPLANE_TRIGGER_SECONDS",
        whole("seconds", 10, 86400),
        "a trigger pod that Karpenter has made no NodeClaim for within this time has failed",
        "600",
    ),
    Variable(
        "GPUPLANE_REGISTRATION_SECONDS",
        whole("seconds", 10, 86400),
        "a NodeClaim whose node has not registered within this time, or is not ready so long after that, has failed",
        "900",
    ),
    Variable(
        "GPUPLANE_INVENTORY_SECONDS",
        whole("seconds", 10, 86400),
        "a new node whose agent has not said within this time what it has, from Ready on, has failed",
        "300",
    ),
    Variable(
        "GPUPLANE_DO_NOT_DISRUPT",
        FLAG,
        "bound pods with GPUs keep Karpenter from consolidating their node, by the annotation "
        "`karpenter.sh/do-not-disrupt` in the Binding",
        "1",
    ),
    Variable(
        "GPUPLANE_PAUSE_IMAGE",
        NAME,
        "image of trigger pods, which never run for long",
        "registry.k8s.io/pause:3.10",
    ),
    Variable(
        "GPUPLANE_SLOT_START_SECONDS",
        whole("seconds", 10, 86400),
        "a slot of a model that is not ready within this time from its start has failed",
        "600",
    ),
    Variable(
        "GPUPLANE_SLOT_DRAIN_SECONDS",
        whole("seconds", 0, 86400),
        "a slot that is to go may finish its requests for so long before it is stopped",
        "60",
    ),
    Variable(
        "GPUPLANE_IDLE_MINUTES",
        whole("minutes", 0, 24 * 60),
        "the GPUs of a preemptible pod that were below 5 % for so long are lent to pods with the label "
        '`gpu.scheduling/borrow-idle: "true"`; 0: never',
        "0",
    ),
    Variable(
        "GPUPLANE_HOURS_KEPT_DAYS",
        whole("days", 1, 3650),
        "retention of the history by hour, of devices and of queues",
        "90",
    ),
    Variable("GPUPLANE_TOKEN_DAYS", whole("days", 1, 3650), "lifetime of a person's API token if none is chosen", "90"),
    Variable(
        "GPUPLANE_TOKEN_MOST_DAYS",
        whole("days", 1, 3650),
        "longest lifetime that may be chosen for an API token",
        "366",
    ),
    Variable("GPUPLANE_AUDIT_DAYS", whole("days", 1, 3650), "retention of audit events", "90"),
    Variable(
        "GPUPLANE_BODY_LIMIT",
        whole("bytes", 1024, 1 << 30),
        "largest request body under `/extender/`, and of any other path whose own limit "
        "(`gpuplane/listeners/body_limits.py`) is higher",
        "33554432",
    ),
    Variable(
        "GPUPLANE_QUEUE_SECONDS",
        whole("seconds", 0, 3600),
        "how long an inference request waits for a slot; then it is answered 503 with the reason",
        "60",
    ),
    Variable(
        "GPUPLANE_QUEUE_LENGTH",
        whole("number", 0, 100_000),
        "how many inference requests of one model may wait; further ones are answered 429",
        "1000",
    ),
    Variable(
        "GPUPLANE_UPSTREAM_SECONDS",
        whole("seconds", 1, 3600),
        "how long a model's runtime may send nothing within an answer, its beginning included; then the request ends "
        "(504 if nothing was sent yet)",
        "300",
    ),
    Variable(
        "GPUPLANE_CONNECTIONS",
        whole("number", 16, 1_000_000),
        "maximum open connections of one listener, TLS handshakes included (and 512 fewer than the open files that "
        "the process may have); at the limit, the connection that has been without a request for longest is closed "
        "for a new one",
        "8192",
    ),
    Variable(
        "GPUPLANE_CONNECTIONS_PER_ADDRESS",
        whole("number", 4, 1_000_000),
        "the same for one address (of IPv6 a /64), not counting live streams of agents and browsers, which "
        "together with the others may be three quarters of a listener's; no limit for loopback and for the proxies "
        "of FORWARDED_ALLOW_IPS",
        "512",
    ),
    Variable(
        "GPUPLANE_SIMULATE",
        FLAG,
        "`make run` starts a simulated cluster with fleet and workload, and sets GPUPLANE_KUBECONFIG to it (not where "
        "that is set already); 0: an empty control plane",
        "1",
    ),
    Variable("GPUPLANE_SIMULATE_NODES", whole("number", 1, 5000), "number of nodes of the simulated fleet", "64"),
    Variable("GPUPLANE_ALLOWED_HOSTS", WORDS, "further host names of the pages"),
    Variable(
        "FORWARDED_ALLOW_IPS",
        PROXIES,
        "addresses and networks of the proxies (an Ingress controller) whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are trusted on the main listener; sign-ins are limited by the address that they "
        "contain, and cookies are `Secure` if they say `https`; empty: none",
    ),
    Variable(
        "GPUPLANE_HSTS_SECONDS",
        whole("seconds", 0, 63_072_000),
        "how long browsers that used TLS must keep using it (`Strict-Transport-Security`), never for loopback "
        "names; 0: the header is not sent",
        "31536000",
    ),
    Variable(
        "GPUPLANE_SECRET_KEY", SECRET, "signing key of sessions; empty: generated once and kept in the data folder"
    ),
    Variable(
        "GPUPLANE_ADMIN_PASSWORD",
        SECRET,
        "first password of the account `admin`, when `manage.py bootstrap` creates it; a password that was set "
        "later stays. No tokens are issued then (except for a simulated fleet); empty: generated once and written "
        "to `credentials.json`, with tokens",
    ),
    Variable(
        "GPUPLANE_OIDC",
        OIDC,
        "providers of sign-in by OpenID Connect, as a JSON list (docs/sign-in.md); empty: none",
    ),
    Variable(
        "GPUPLANE_OIDC_SECRETS",
        OIDC_SECRETS,
        "their client secrets, as a JSON object from the provider's `id`; one without is a public client",
    ),
    Variable(
        "GPUPLANE_LOCAL_ACCOUNTS",
        one_of("all", "break-glass"),
        "whose password opens a session: everybody's, or, where GPUPLANE_OIDC names a provider, that of "
        "GPUPLANE_BREAK_GLASS_ACCOUNT alone",
        "all",
    ),
    Variable(
        "GPUPLANE_BREAK_GLASS_ACCOUNT", TEXT, "the account that signs in by password when no provider answers", "admin"
    ),
    Variable(
        "GPUPLANE_SERVICE_ACCOUNT_ROLE",
        one_of("none", "viewer", "operator"),
        "what a ServiceAccount whose namespace is a team's may do over REST, with a token of its own of audience "
        "GPUPLANE_AGENT_AUDIENCE; `none`: such tokens are refused",
        "viewer",
    ),
    Variable(
        "GPUPLANE_LOG_LEVEL", one_of("debug", "info", "warning", "error"), "debug, info, warning or error", "info"
    ),
    Variable("GPUPLANE_DEBUG", FLAG, "Django's debug pages; never on a reachable address", "0"),
)


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by name without the prefix. Raises BadSetting, which names every variable that does not parse."""
    values: dict[str, Any] = {}
    problems = []
    for variable in VARIABLES:
        given = environ.get(variable.name, "").strip() or variable.default
        try:
            values[variable.name.removeprefix("GPUPLANE_")] = variable.kind.parse(given)
        except ValueError as error:
            shown = "" if variable.kind.label == SECRET.label else f"={given!r}"
            problems.append(f"{variable.name}{shown}: {error}")
    missing = [name for name in SHARED if not environ.get(name, "").strip()]
    if missing and not values.get("EMBEDDED", True):
        problems.append(f"{' and '.join(missing)} must be set where GPUPLANE_EMBEDDED is 0, as in the images")
    known = {variable.name for variable in VARIABLES}
    problems += [
        f"{name}: no such setting; docs/settings.md lists them"
        for name in sorted(environ)
        if name.startswith("GPUPLANE_") and name not in known and name not in OUTSIDE
    ]
    if values.get("RESERVATION_NAMESPACE", "") == values.get("NAMESPACE"):
        problems.append(
            "GPUPLANE_RESERVATION_NAMESPACE: give another namespace than GPUPLANE_NAMESPACE; reservation pods may "
            "change every pod of theirs"
        )
    problems += _sign_in_problems(values)
    if problems:
        raise BadSetting("settings cannot be read:" + (f" {problems[0]}" if problems[1:] == [] else _lines(problems)))
    return values


def _sign_in_problems(values: Mapping[str, Any]) -> list[str]:
    ids = {provider.id for provider in values.get("OIDC", ())}
    problems = [
        f"GPUPLANE_OIDC_SECRETS: GPUPLANE_OIDC names no provider {name}"
        for name in sorted(set(values.get("OIDC_SECRETS", {})) - ids)
        if "OIDC" in values
    ]
    if values.get("LOCAL_ACCOUNTS") == "break-glass" and "OIDC" in values and not ids:
        problems.append("GPUPLANE_LOCAL_ACCOUNTS=break-glass: GPUPLANE_OIDC names no provider, so nobody could sign in")
    if not values.get("BREAK_GLASS_ACCOUNT", "admin"):
        problems.append("GPUPLANE_BREAK_GLASS_ACCOUNT: name the account")
    return problems


def _lines(problems: Iterable[str]) -> str:
    return "".join(f"\n  {problem}" for problem in problems)


SHARED = ("GPUPLANE_DATABASE_URL", "GPUPLANE_REDIS_URL")
"""What processes of several machines have in common."""

OUTSIDE = frozenset({"GPUPLANE_TOOLS_DIR", "GPUPLANE_TEST_DATABASE", "GPUPLANE_TEST_POSTGRES_BIN", "GPUPLANE_CHROMIUM"})
"""Variables of the test and build tools, not of the product."""
