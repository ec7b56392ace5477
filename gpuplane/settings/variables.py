"""Every `GPUPLANE_*` environment variable: name, kind, meaning, default. Read once at start.

`docs/settings.md` is generated from this table (`manage.py settings_table`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplane.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value is, in a word, and how it is parsed. `parse` raises ValueError with the rule for a person."""

    label: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable."""

    name: str
    kind: Kind
    meaning: str
    default: str = ""


def _path(value: str) -> Path | None:
    return Path(value).expanduser() if value.strip() else None


def _flag(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("give 1 or 0")


def _whole(label: str, low: int, high: int) -> Kind:
    def parse(value: str) -> int:
        if not value.strip().isdecimal() or not low <= int(value) <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return int(value)

    return Kind(label, parse)


def _one_of(*words: str) -> Kind:
    def parse(value: str) -> str:
        if value.strip() not in words:
            raise ValueError("give one of " + ", ".join(words))
        return value.strip()

    return Kind("word", parse)


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in value.split(",")) if word)


def _proxies(value: str) -> tuple[str, ...]:
    """Addresses and networks as `ipaddress` writes them; none may hold every address."""
    found = []
    for word in _words(value):
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError as error:
            raise ValueError(f"{word} is no IP address or network; give them separated by commas") from error
        if network.prefixlen == 0:
            raise ValueError(f"{word} is everybody; name the proxies")
        found.append(str(network) if "/" in word else str(network.network_address))
    return tuple(found)


def _listen(value: str) -> str:
    """`[scheme://]host:port`, checked for its shape; `gpuplane.listeners.plan` checks what each scheme allows."""
    text = value.strip()
    scheme, separator, address = text.rpartition("://")
    host, _, port = address.rpartition(":")
    known_scheme = scheme in {"http", "https"} if separator else True
    if text and not (known_scheme and host and port.isdecimal() and int(port) <= 65535):
        raise ValueError("give [http://|https://]host:port")
    return text


FLAG = Kind("flag", _flag)
PATH = Kind("path", _path)
WORDS = Kind("list", _words)
PROXIES = Kind("list", _proxies)
ADDRESS = Kind("address", str.strip)
NAME = Kind("name", str.strip)
TEXT = Kind("text", str.strip)
SECRET = Kind("secret", str.strip)
URL = Kind("URL", str.strip)

VARIABLES: tuple[Variable, ...] = (
    Variable("GPUPLANE_DATA_DIR", PATH, "folder of the embedded database, Redis, logs and credentials", "var"),
    Variable("GPUPLANE_HOST", ADDRESS, "address of the main listener", "127.0.0.1"),
    Variable(
        "GPUPLANE_PORT",
        _whole("port", 0, 65535),
        "port of the main listener: pages, REST, and the cluster's paths with a bearer token",
        "8000",
    ),
    Variable(
        "GPUPLANE_EXTENDER_LISTEN",
        Kind("[scheme://]host:port", _listen),
        "a listener for `/extender/` only; loopback without a scheme is plain HTTP without credentials, anything else "
        "HTTPS with a client certificate",
    ),
    Variable("GPUPLANE_WEBHOOK_LISTEN", Kind("host:port", _listen), "a listener for `/webhooks/` only, TLS"),
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
    Variable("GPUPLANE_DATABASE_URL", URL, "`postgres://user:password@host/name`; empty: SQLite in the data folder"),
    Variable(
        "GPUPLANE_DATABASE_POOL",
        _whole("number", 2, 200),
        "maximum PostgreSQL connections of one process; pages and REST leave 18 of them to filter, bind and agents",
        "30",
    ),
    Variable("GPUPLANE_REDIS_URL", URL, "`redis://…` or `unix://…`; empty: the embedded Redis of the data folder"),
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
    Variable("GPUPLANE_AGENT_AUDIENCE", TEXT, "audience of agents' ServiceAccount tokens", "gpuplane"),
    Variable(
        "GPUPLANE_SCHEDULER_NAME",
        TEXT,
        "`spec.schedulerName` of the kube-scheduler that calls gpuplane; pods that are taken over get it",
        "gpu-scheduler",
    ),
    Variable(
        "GPUPLANE_GUARD",
        _one_of("everywhere", "ours"),
        "which pods' Bindings by other users the webhook refuses: those of all pods that request devices "
        "(`everywhere`), or, during a takeover, only those of pods that name gpuplane's scheduler or a GpuClaim "
        "(`ours`)",
        "everywhere",
    ),
    Variable(
        "GPUPLANE_EXTENDER_MODE",
        _one_of("decisive", "advisory"),
        "`decisive`: filter returns the single best node and holds its devices; `advisory`: every feasible node",
        "decisive",
    ),
    Variable(
        "GPUPLANE_VISIBLE_DEVICES",
        _one_of("uuid", "index"),
        "how pods by GpuClaim that an earlier version admitted, with `CUDA_VISIBLE_DEVICES` alone, see their "
        "devices: `uuid` or `index`; with `NVIDIA_VISIBLE_DEVICES`, which every pod gets now, both contain UUIDs",
        "uuid",
    ),
    Variable(
        "GPUPLANE_SHARE",
        _one_of("gpupack", "gpuspread"),
        "shares are placed on the fullest device that fits (`gpupack`) or the emptiest (`gpuspread`)",
        "gpupack",
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
        _one_of("exclusive", "device-plugin"),
        "mode of the nodes for pods by `nvidia.com/gpu` that do not select one by `gpu.scheduling/mode`: "
        "`exclusive`, or `device-plugin`, where kubelets choose the devices",
        "exclusive",
    ),
    Variable(
        "GPUPLANE_GPU_SPLIT",
        _whole("number", 1, 100),
        "how many `nvidia.com/gpu` a node in mode exclusive advertises for each GPU: more than one where pods "
        "share GPUs in HAMi's dialect, each of which counts as one; pods by `nvidia.com/gpu` are then counted as "
        "with `GPUPLANE_COUNT_NATIVE`",
        "1",
    ),
    Variable("GPUPLANE_HOLD_SECONDS", _whole("seconds", 1, 3600), "lifetime of a hold", "30"),
    Variable(
        "GPUPLANE_LONG_HOLD_SECONDS",
        _whole("seconds", 1, 7200),
        "lifetime of a hold if the pod has unbound volume or resource claims",
        "660",
    ),
    Variable(
        "GPUPLANE_COLLECT_SECONDS",
        _whole("seconds", 1, 30),
        "interval of garbage collection; at most 30 satisfies LEASE-4",
        "10",
    ),
    Variable(
        "GPUPLANE_RELOAD_SECONDS",
        _whole("seconds", 5, 3600),
        "interval of the full reload that checks the snapshot in memory",
        "60",
    ),
    Variable(
        "GPUPLANE_MINUTES_KEPT_HOURS", _whole("hours", 1, 24 * 366), "retention of the devices' history by minute", "48"
    ),
    Variable(
        "GPUPLANE_IDLE_MINUTES",
        _whole("minutes", 0, 24 * 60),
        "the GPUs of a preemptible pod that were below 5 % for so long are lent to pods with the label "
        '`gpu.scheduling/borrow-idle: "true"`; 0: never',
        "0",
    ),
    Variable(
        "GPUPLANE_HOURS_KEPT_DAYS",
        _whole("days", 1, 3650),
        "retention of the history by hour, of devices and of queues",
        "90",
    ),
    Variable(
        "GPUPLANE_TOKEN_DAYS", _whole("days", 1, 3650), "lifetime of a person's API token if none is chosen", "90"
    ),
    Variable(
        "GPUPLANE_TOKEN_MOST_DAYS",
        _whole("days", 1, 3650),
        "longest lifetime that may be chosen for an API token",
        "366",
    ),
    Variable("GPUPLANE_AUDIT_DAYS", _whole("days", 1, 3650), "retention of audit events", "90"),
    Variable(
        "GPUPLANE_BODY_LIMIT",
        _whole("bytes", 1024, 1 << 30),
        "largest request body under `/extender/`, and of any other path whose own limit "
        "(`gpuplane/listeners/body_limits.py`) is higher",
        "33554432",
    ),
    Variable(
        "GPUPLANE_CONNECTIONS",
        _whole("number", 16, 1_000_000),
        "maximum open connections of one listener, TLS handshakes included (and 512 fewer than the open files that "
        "the process may have); at the limit, the connection that has been without a request for longest is closed "
        "for a new one",
        "8192",
    ),
    Variable(
        "GPUPLANE_CONNECTIONS_PER_ADDRESS",
        _whole("number", 4, 1_000_000),
        "the same for one address (of IPv6 a /64), not counting live streams of agents and browsers, which "
        "together with the others may be three quarters of a listener's; no limit for loopback and for the proxies "
        "of FORWARDED_ALLOW_IPS",
        "512",
    ),
    Variable(
        "GPUPLANE_SIMULATE",
        FLAG,
        "`make run` starts a simulated fleet and workload (never with GPUPLANE_KUBECONFIG); 0: an empty control plane",
        "1",
    ),
    Variable("GPUPLANE_SIMULATE_NODES", _whole("number", 1, 5000), "number of nodes of the simulated fleet", "64"),
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
        _whole("seconds", 0, 63_072_000),
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
        "GPUPLANE_LOG_LEVEL", _one_of("debug", "info", "warning", "error"), "debug, info, warning or error", "info"
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
            problems.append(f"{variable.name}={given!r}: {error}")
    known = {variable.name for variable in VARIABLES}
    problems += [
        f"{name}: no such setting; docs/settings.md lists them"
        for name in sorted(environ)
        if name.startswith("GPUPLANE_") and name not in known and name not in OUTSIDE
    ]
    if problems:
        raise BadSetting("settings cannot be read:\n  " + "\n  ".join(problems))
    return values


OUTSIDE = frozenset({"GPUPLANE_TOOLS_DIR", "GPUPLANE_TEST_DATABASE", "GPUPLANE_TEST_POSTGRES_BIN", "GPUPLANE_CHROMIUM"})
"""Variables of the test and build tools, not of the product."""
